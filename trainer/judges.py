"""Judges that score recorded responses, and keep on disk what they say: nothing is paid for twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ..agents.roles.client import Role
from ..agents.scoring.judge import Judge
from ..agents.scoring.scorer import Scorer
from ..agents.scoring.verdictcache import VerdictCache
from ..agents.usage import RoleUsage, Usage
from ..specs.schema import Judge as JudgeSpec
from ..specs.schema import Oracle, Reward
from .evaluate.store import ReasonStore
from .report.text import plural

PURPOSE = "judge"


class Counted:
    """A judge's verdicts on disk (None: they are not kept), and how many were there and are new."""

    def __init__(self, cache: VerdictCache | None) -> None:
        self.cache = cache
        self.known = 0
        self.new = 0
        self.heard: Callable[[int], None] = lambda count: None
        """Hears the count as verdicts arrive, in the judge's own thread."""

    @property
    def count(self) -> int:
        """Verdicts so far, of both kinds."""
        return self.known + self.new

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """What is known of these questions."""
        found = self.cache.get(hashes) if self.cache is not None else {}
        self.known += len(found)
        self.heard(self.count)
        return found

    def put(self, verdicts: Iterable[tuple[bytes, int]]) -> None:
        """Keep verdicts."""
        rows = list(verdicts)
        if self.cache is not None:
            self.cache.put(rows)
        self.new += len(rows)
        self.heard(self.count)


class Rater:
    """What scores a file of responses: the checks, and a judge if there is one."""

    def __init__(self, spec: JudgeSpec | None, folder: Path, stack: contextlib.ExitStack) -> None:
        self.spec = spec
        self._usage = Usage()
        cache = judge = None
        if spec is not None and spec.cache:
            cache = VerdictCache(_verdicts(spec, folder), spec.cache)
            stack.callback(cache.close)
        self.verdicts = Counted(cache)
        if spec is not None:
            reasons = None
            if cache is not None:
                reasons = ReasonStore(_verdicts(spec, folder).with_name("reasons.sqlite"))
                stack.callback(reasons.close)
            role = Role("judge", spec, self._usage)
            stack.callback(role.close)  # before its cache is closed: answers may still come
            judge = Judge(role, spec, self.verdicts, reasons)
        self.scorer = Scorer(Oracle(kind="none"), self._usage, Reward().max_dropped, judge)

    def spent(self) -> list[str]:
        """A line on what the judge was asked, what that took, and what was known; no judge: none."""
        if self.spec is None:
            return []
        used = self._usage.roles.get("judge", {}).get(PURPOSE, RoleUsage())
        failed = f" ({used.failed:,} failed)" if used.failed else ""
        cost = f", cost {used.cost or 0.0:.4g}" if self.spec.prices else ""
        known = plural(self.verdicts.known, "verdict")
        return [
            f"judge: {plural(used.calls, 'call')}{failed}, {plural(used.tokens_in, 'token')} in, "
            f"{used.tokens_out:,} out{cost}; {known} from the cache"
        ]


@contextlib.contextmanager
def open_raters(specs: Sequence[JudgeSpec | None], folder: Path) -> Iterator[list[Rater]]:
    """A rater by each judge (None: checks only); `folder` keeps what judges say. Raises
    `KeyMissingError`, and `OSError` or `sqlite3.Error` where the folder cannot be used."""
    with contextlib.ExitStack() as stack:
        yield [Rater(spec, folder, stack) for spec in specs]


def kept(specs: Sequence[JudgeSpec | None], folder: Path) -> int:
    """How many verdicts of these judges the folder keeps."""
    files = {_verdicts(spec, folder): spec.cache for spec in specs if spec is not None and spec.cache}
    n = 0
    for file, limit in files.items():
        if file.is_file():
            with contextlib.closing(VerdictCache(file, limit)) as cache:
                n += len(cache)
    return n


def _verdicts(spec: JudgeSpec, folder: Path) -> Path:
    """Where a judge's verdicts are kept. Judges at different addresses are different ones here, whatever
    they call their model: to compare them is what they are asked for."""
    address = json.dumps(sorted(spec.base_urls))
    return folder / hashlib.sha256(address.encode()).hexdigest()[:12] / "verdicts.sqlite"
