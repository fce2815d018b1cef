"""Verdicts on disk: what is asked once only, what is another question, and which verdicts go."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harnessrl.agents.roles.client import Role
from harnessrl.agents.scoring import verdictcache
from harnessrl.agents.scoring.judge import Item, Judge
from harnessrl.agents.scoring.verdictcache import VerdictCache
from harnessrl.agents.usage import Usage
from harnessrl.specs.schema import Judge as JudgeSpec
from scripted_endpoint import Reply, ScriptedEndpoint, asked, judging, question

PROMPTS = Path(__file__).parent.parent / "prompts"
ITEMS = (
    Item("Name a colour.", "Red.", ("It names a colour.", "It is rude.")),
    Item("Name a colour.", "Hm, no.", ("It names a colour.", "It is rude.")),
    Item("Grüße mich.", "世界 \ud800 👍", ("It names a colour.",)),
)
VERDICTS = [[True, False], [False, False], [False]]


def key(n: int) -> bytes:
    return hashlib.sha256(str(n).encode()).digest()


def keys(*numbers: int) -> list[bytes]:
    return [key(n) for n in numbers]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "verdicts.sqlite"


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(
        judging(lambda response, criterion: "Red" in response and "colour" in criterion)
    ) as it:
        yield it


def decide(
    endpoint: ScriptedEndpoint, path: Path, items: Sequence[Item] = ITEMS, **spec: Any
) -> tuple[list[list[bool | None]], int]:
    """The verdicts of a judge that opens the cache anew, and how many questions that took."""
    before = len(endpoint.bodies)
    rest = {"base_urls": (endpoint.base_url,), "model": "scripted", "retries": 0} | spec
    made = JudgeSpec(**rest)
    role, cache = Role("judge", made, Usage()), VerdictCache(path, made.cache)
    with contextlib.closing(role), contextlib.closing(cache):
        rows = Judge(role, made, cache).decide(items, "train")
    return [[one.met for one in row] for row in rows], len(endpoint.bodies) - before


# --- behind a judge -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["criterion", "rubric"])
def test_the_same_question_is_never_asked_twice(
    batch: str, endpoint: ScriptedEndpoint, path: Path
) -> None:
    assert decide(endpoint, path, batch=batch) == (VERDICTS, 5 if batch == "criterion" else 3)
    assert decide(endpoint, path, batch=batch) == (VERDICTS, 0), (
        "not even after the file was opened again"
    )


def test_one_cache_serves_from_its_first_verdict_on(endpoint: ScriptedEndpoint, path: Path) -> None:
    """Also while it was empty when it was opened."""
    made = JudgeSpec(base_urls=(endpoint.base_url,), model="scripted")
    role, cache = Role("judge", made, Usage()), VerdictCache(path, 100)
    with contextlib.closing(role), contextlib.closing(cache):
        by = Judge(role, made, cache)
        for _ in range(3):
            assert [[one.met for one in row] for row in by.decide(ITEMS, "train")] == VERDICTS
        assert len(cache) == len(endpoint.bodies) == 5


def test_only_what_is_not_known_is_asked(endpoint: ScriptedEndpoint, path: Path) -> None:
    decide(endpoint, path, ITEMS[:1], batch="rubric")
    more = Item("Name a colour.", "Red.", ("It is rude.", "It is kind.", "It names a colour."))
    assert decide(endpoint, path, [more], batch="rubric") == ([[False, False, True]], 1)
    assert asked(endpoint.bodies[-1]).criteria == ("It is kind.",)


@pytest.mark.parametrize(
    "reply", [Reply("I think so."), Reply(status=500), Reply(""), Reply('{"met": tr', finish="length")]
)
def test_unscored_is_not_kept(reply: Reply, endpoint: ScriptedEndpoint, path: Path) -> None:
    healthy = endpoint.answer
    endpoint.answer = lambda body: reply if asked(body).criteria == ("It is rude.",) else healthy(body)
    assert decide(endpoint, path)[0] == [[True, None], [False, None], [False]]
    with contextlib.closing(VerdictCache(path, 100)) as cache:
        assert len(cache) == 3
    endpoint.answer = healthy
    assert decide(endpoint, path) == (VERDICTS, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"temperature": 0.5},
        {"batch": "rubric"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_judge_is_another_question(
    change: dict[str, Any], endpoint: ScriptedEndpoint, path: Path
) -> None:
    decide(endpoint, path)
    assert decide(endpoint, path, **change)[1] == (3 if "batch" in change else 5)
    assert decide(endpoint, path)[1] == 0, "both are known now"


def test_other_words_in_the_prompt_are_another_question(
    endpoint: ScriptedEndpoint, path: Path, tmp_path: Path
) -> None:
    """Also where they are a person's own, and whatever their file is called."""
    decide(endpoint, path)
    template = tmp_path / "own.md"
    template.write_text((PROMPTS / "judge.md").read_text() + "Be strict.\n")
    assert decide(endpoint, path, prompt=str(template)) == (VERDICTS, 5)
    assert question(endpoint.bodies[-1]).endswith("Be strict.")
    same = template.rename(tmp_path / "renamed.md")
    assert decide(endpoint, path, prompt=str(same))[1] == 0
    assert decide(endpoint, path)[1] == 0


def test_how_the_same_judge_is_reached_changes_nothing(
    endpoint: ScriptedEndpoint, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(endpoint, path)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with ScriptedEndpoint(endpoint.answer) as elsewhere:
        reached = {"base_urls": (elsewhere.base_url,), "api_key_env": "JUDGE_KEY", "concurrency": 2}
        decide(endpoint, path, timeout=9.0, retries=3, **reached)
        assert elsewhere.bodies == []


@pytest.mark.parametrize(
    "item",
    [
        Item("Name a colour!", "Red.", ("It names a colour.",)),
        Item("Name a colour.", "Red", ("It names a colour.",)),
        Item("Name a colour.", "Red.", ("It names a color.",)),
        Item("Name a colour.Red.", "", ("It names a colour.",)),
    ],
)
def test_other_texts_are_another_question(item: Item, endpoint: ScriptedEndpoint, path: Path) -> None:
    decide(endpoint, path)
    assert decide(endpoint, path, [item])[1] == 1


# --- on its own -----------------------------------------------------------------------------------


def test_verdicts_stay_as_they_were_given(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 100)) as cache:
        assert cache.get(keys(1, 2)) == {}
        cache.put([(key(1), True), (key(2), False)])
        cache.put([])
        assert cache.get(keys(1, 2, 3)) == {key(1): True, key(2): False}
    with contextlib.closing(VerdictCache(path, 100)) as cache:
        cache.put([(key(1), False)])
        assert cache.get(keys(2, 1)) == {key(1): False, key(2): False}
        assert len(cache) == 2


def test_thousands_are_looked_up_at_once(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 10_000)) as cache:
        cache.put((key(n), n % 3 == 0) for n in range(2500))
        assert cache.get(keys(*range(3000))) == {key(n): n % 3 == 0 for n in range(2500)}


def test_the_least_recently_used_go_first(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.put((key(n), True) for n in range(10))
        assert len(cache.get(keys(0, 1, 2))) == 3  # used again; 3 .. 9 are not
        cache.get([])
        cache.put((key(n), True) for n in range(10, 17))
        cache.put((key(n), True) for n in range(17, 20))  # ten written: time to look at the size
        assert len(cache) == 10
        left = cache.get(keys(*range(20)))
        assert sorted(left) == sorted(keys(*range(10, 20)))


def test_what_is_used_stays(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.put((key(n), True) for n in range(10))
        for start in range(10, 100, 5):
            assert cache.get(keys(0)) == {key(0): True}
            cache.put((key(n), False) for n in range(start, start + 5))
        assert len(cache) <= 20


def test_use_is_remembered_when_the_file_is_opened_again(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.put((key(n), True) for n in range(6))
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.get(keys(0, 1))
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.get([])
        cache.put((key(n), True) for n in range(6, 16))
        assert sorted(cache.get(keys(*range(16)))) == sorted(keys(*range(6, 16)))
    with contextlib.closing(VerdictCache(path, 3)) as cache:
        assert len(cache) == 3, "a smaller limit holds at once"


def test_the_newest_stay_in_a_file_that_was_used_for_long(path: Path) -> None:
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        for n in range(10):
            cache.get(keys(*range(n)))
            cache.put([(key(n), True)])
    with contextlib.closing(VerdictCache(path, 10)) as cache:
        cache.put((key(n), True) for n in range(10, 20))
        assert sorted(cache.get(keys(*range(20)))) == sorted(keys(*range(10, 20)))


def test_the_size_stays_bounded_however_it_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short runs on one file are like a long one."""
    monkeypatch.setattr(verdictcache, "TRIM_EVERY", 50)
    for run in range(20):
        with contextlib.closing(VerdictCache(path, 100)) as cache:
            for n in range(3):
                cache.put((key(1000 * run + 10 * n + i), True) for i in range(10))
                assert len(cache) <= 100 + 50
    with contextlib.closing(VerdictCache(path, 100)) as cache:
        assert len(cache) == 100


def test_threads_may_share_a_cache(path: Path) -> None:
    errors: list[BaseException] = []
    with contextlib.closing(VerdictCache(path, 100_000)) as cache:

        def work(n_thread: int) -> None:
            try:
                for n in range(60):
                    own = [1000 * n_thread + n, n]  # one of its own, one that all write
                    cache.put((key(i), i % 2 == 0) for i in own)
                    assert cache.get(keys(*own)) == {key(i): i % 2 == 0 for i in own}
                    assert len(cache) > 0
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert errors == []
        assert len(cache) == 60 + 6 * 60


#: Writes verdicts FIRST .. FIRST + 199 in small parts, reading between them, and says how many it knows.
WRITER = """
import hashlib, sys
from pathlib import Path
from harnessrl.agents.scoring.verdictcache import VerdictCache
key = lambda n: hashlib.sha256(str(n).encode()).digest()
cache, first = VerdictCache(Path(sys.argv[1]), 10_000), int(sys.argv[2])
for n in range(first, first + 200, 4):
    cache.put((key(i), i % 2 == 0) for i in range(n, n + 4))
    assert len(cache.get([key(i) for i in range(first, n + 4)])) == n + 4 - first
print(sum(cache.get([key(i) for i in range(1000)]).values()))
cache.close()
"""


def test_processes_may_share_a_file(path: Path) -> None:
    """All at once, and what they wrote is there for the next."""
    with contextlib.closing(VerdictCache(path, 10_000)) as cache:
        cache.put([(key(999_999), True)])
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, path, str(first)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for first in (0, 200, 400)
        ]
        for n in range(100):
            cache.put([(key(600 + n), n % 2 == 0)])
        for writer in writers:
            out, err = writer.communicate(timeout=60)
            assert writer.returncode == 0, err
            assert int(out) >= 100
        assert cache.get(keys(*range(700), 999_999)) == {
            **{key(n): n % 2 == 0 for n in range(700)},
            key(999_999): True,
        }


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.sqlite"
    path.write_bytes(b"not a database at all, and long enough to be read as one" * 40)
    with pytest.raises(sqlite3.DatabaseError, match=r"verdicts\.sqlite: .*move it away"):
        VerdictCache(path, 10)
