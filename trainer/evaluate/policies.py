"""Who is evaluated: a model folder, the newest policy of a run, or a model behind an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urldefrag

from ...agents.policy import Request
from ...agents.roles.client import Answer, Question, Role
from ...agents.usage import Usage
from ...specs.sampling import stream
from ...specs.schema import Endpoint, Scalar
from ...specs.secrets import masked
from ..runfolder import RunFolder, latest_checkpoint

#: What a checkpoint of the simulated engine holds in place of weights.
SIMULATED = "logits.json"
#: The environment variable with the key of an evaluated endpoint, where it wants one.
KEY_ENV = "POLICY_API_KEY"


@dataclass(frozen=True)
class Ask:
    """One response to sample. The draws depend on `seed` and `key` only; temperature 0 is greedy."""

    prompt: str
    temperature: float
    max_tokens: int
    seed: int
    key: tuple[int | str, ...]


@dataclass(frozen=True)
class Reply:
    """A response; `finished` is False when it was cut at the token limit."""

    text: str
    finished: bool


class Evaluated(Protocol):
    """A policy to evaluate."""

    name: str
    """What it is called in tables."""
    identity: str
    """Changes with the weights, as far as one can know from here: what cached responses go by."""

    def replies(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Reply | str]]:
        """The number of an ask and its reply (a text: why there is none), each as it comes."""

    def stop(self) -> None:
        """From another thread: `replies` ends soon, whatever is left."""

    def close(self) -> None:
        """Let go of it."""


class PolicyMissingError(Exception):
    """What was named is no policy; the message says why."""


@dataclass(frozen=True)
class Found:
    """A policy that is there, and what opens it."""

    name: str
    identity: str
    open: Callable[[], Evaluated]


def find_policy(
    name: str, concurrency: int, max_tokens: int, template_kwargs: Mapping[str, Scalar]
) -> Found:
    """The policy that a command line names. Raises `PolicyMissingError`, `PolicyNotFoundError`."""
    if name.startswith(("http://", "https://")):

        def behind_endpoint() -> EndpointPolicy:
            return EndpointPolicy(name, concurrency, max_tokens, template_kwargs)

        with contextlib.closing(behind_endpoint()) as policy:
            identity = policy.identity
        return Found(name, identity, behind_endpoint)
    from ..local.decode import device

    folder = policy_folder(name)
    identity = f"local {fingerprint(folder)} {device()}{_told(template_kwargs)}"
    return Found(name, identity, lambda: LocalPolicy(name, identity, folder, max_tokens, template_kwargs))


def _told(template_kwargs: Mapping[str, Scalar]) -> str:
    """The part of an identity that says how prompts are templated; responses differ with it."""
    return f" {json.dumps(template_kwargs, sort_keys=True)}" if template_kwargs else ""


def policy_folder(name: str) -> Path:
    """The model folder that `name` means: its own, or the newest policy of a run folder.

    Raises `PolicyMissingError`, `PolicyNotFoundError`.
    """
    from ..local.model import resolve

    root = Path(name).expanduser()
    is_run = (root / "spec.yaml").is_file() and (root / "events.jsonl").is_file()
    run = RunFolder(root)
    found = latest_checkpoint(run) if is_run else None
    folder = found[1] / "policy" if found else run.openrlhf / "policy" if is_run else root
    if (folder / SIMULATED).is_file():
        raise PolicyMissingError(
            f"{name}: a simulated policy: it has no weights that could write responses to other tasks. "
            "What its run measured is in the run's report; a run with `engine.kind: local` or `openrlhf` "
            "has a policy to evaluate"
        )
    if is_run:
        if not (folder / "config.json").is_file():
            raise PolicyMissingError(f"{name}: the run has no policy that could be loaded (no {folder})")
        return folder
    return resolve(name)


def fingerprint(folder: Path) -> str:
    """A hash of what a model folder holds: weights, configuration, tokenizer."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".jinja", ".model", ".txt"):
            with path.open("rb") as file:
                total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]


class LocalPolicy:
    """A model folder, sampled in this process in bf16, as training samples it.

    Raises `PolicyNotFoundError`.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        folder: Path,
        max_tokens: int,
        template_kwargs: Mapping[str, Scalar],
    ) -> None:
        from ..local.decode import FolderSampler

        self.name = name
        self.identity = identity
        self._sampler = FolderSampler(folder, max_tokens, template_kwargs)
        self._stopped = threading.Event()

    def replies(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Reply | str]]:
        """Each as soon as it ends; greedy and sampled ones are decoded apart."""
        good: dict[tuple[float, int, int], list[int]] = {}
        for n, ask in enumerate(asks):
            if why := self._sampler.refuses(ask.prompt):
                yield n, why
            else:
                good.setdefault((ask.temperature, ask.max_tokens, ask.seed), []).append(n)
        for (temperature, max_tokens, seed), numbers in good.items():
            requests = [Request(asks[n].prompt, asks[n].key) for n in numbers]
            for ended in self._sampler.sample(requests, seed, temperature, max_tokens):
                for k, sample in ended:
                    yield numbers[k], Reply(sample.text, sample.finished)
                if self._stopped.is_set():
                    return

    def stop(self) -> None:
        """With the next token."""
        self._stopped.set()

    def close(self) -> None:
        """Free the memory."""
        del self._sampler


class EndpointPolicy:
    """A model behind an OpenAI-compatible endpoint: `http://host:8000/v1`, or with `#MODEL` behind it
    where it serves several. Its key, if it wants one, is in the environment variable POLICY_API_KEY.
    Arguments of the chat template go along with each request, where there are any: vLLM and SGLang take
    them.

    Raises `PolicyMissingError`.
    """

    def __init__(
        self, name: str, concurrency: int, max_tokens: int, template_kwargs: Mapping[str, Scalar]
    ) -> None:
        url, model = urldefrag(name)
        if (told := masked(name)) != name:
            raise PolicyMissingError(
                f"{told}: no secret stands in an address; the environment variable {KEY_ENV} holds it"
            )
        endpoint = Endpoint(
            base_urls=(url,),
            model=model or "unknown",
            api_key_env=KEY_ENV if os.environ.get(KEY_ENV) else None,
            max_tokens=max_tokens,
            timeout=600.0,
            deadline=1800.0,
            concurrency=concurrency,
            extra_body={"chat_template_kwargs": dict(template_kwargs)} if template_kwargs else {},
        )
        self._role = Role("policy", endpoint, Usage())
        try:
            served = self._served(url, model)
        except PolicyMissingError:
            self._role.close()
            raise
        self._role.spec = endpoint.model_copy(update={"model": served})
        self.name = name
        self.identity = f"{url} {served}{_told(template_kwargs)}"
        self._stopped = threading.Event()
        self._work: Future[None] | None = None

    def _served(self, url: str, model: str) -> str:
        served = self._role.models(url)
        if isinstance(served, str):
            raise PolicyMissingError(f"{url}: {served}")
        if model and model not in served:
            raise PolicyMissingError(f"{url}: serves {', '.join(sorted(served))}, not {model}")
        if not model and len(served) != 1:
            raise PolicyMissingError(
                f"{url}: serves {', '.join(sorted(served)) or 'no model'}; name one: {url}#MODEL"
            )
        return model or next(iter(served))

    def replies(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Reply | str]]:
        """All at once, inside the limit on requests in flight: there is no batch to wait for."""
        done: queue.SimpleQueue[tuple[int, Reply | str] | None] = queue.SimpleQueue()

        async def one(n: int, ask: Ask) -> None:
            question = Question(
                [{"role": "user", "content": ask.prompt}],
                more={
                    "temperature": ask.temperature,
                    "seed": int(stream(ask.seed, *ask.key).integers(2**31)),
                    "max_completion_tokens": ask.max_tokens,
                },
            )
            done.put((n, _reply(await self._role.ask_one(question, "evaluate"))))

        async def every() -> None:
            async with asyncio.TaskGroup() as group:
                for n, ask in enumerate(asks):
                    group.create_task(one(n, ask))

        work = self._work = self._role.start(every())
        work.add_done_callback(lambda _: done.put(None))
        if self._stopped.is_set():  # before there was any work to cancel
            work.cancel()
        while (found := done.get()) is not None:
            yield found
        if not self._stopped.is_set():
            work.result()

    def stop(self) -> None:
        """At once; what was asked is given up."""
        self._stopped.set()
        if self._work is not None:
            self._work.cancel()

    def close(self) -> None:
        """Close the connections."""
        self._role.close()


def _reply(answer: object) -> Reply | str:
    if not isinstance(answer, Answer):
        return str(getattr(answer, "cause", "no answer"))
    if answer.finish == "no choice":
        return "policy: sent no choice"
    return Reply(answer.text.strip(), answer.finish != "length")
