"""The frozen policy: a vLLM server of the controller's own, on the newest weights that were exported.

New weights are loaded in place, and then the server has to prove that it has them, since vLLM can keep
parts of the old ones silently (a tied output head): from one export to the next, its log-probabilities of
a few sequences must have moved as those of the trainer's own rollout engine have. Only the movements are
compared: two servers of one model differ (other kernels, other tensor parallelism) by as much as a few
steps of training change. What is not proved is started anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from ...agents.policy import PolicyError, Request, Sample
from ...agents.roles.client import Answer, Question, Role
from ...agents.scoring.reward import Floats
from ...agents.usage import Usage
from ...specs.openrlhf import OpenrlhfEngine
from ...specs.sampling import stream
from ...specs.schema import Endpoint
from ..chat import Chat
from .server import NAME, PolicyServerError, ServerProcess
from .wire import Fingerprint

#: Mean difference of log-probabilities (nats) that two servers of the same weights may have: 0.058 was
#: measured for SmolLM2-135M in bf16, one of them with its matrix products in two halves.
TOLERANCE = 0.1
#: Weights that were loaded in place are believed if the movements differ by at most this share of them.
PROOF = 0.25


class FrozenPolicy:
    """`Policy` over the server. `version` counts the training steps in the weights it has proved; -1: it
    has none of this run's yet."""

    def __init__(
        self, engine: OpenrlhfEngine, model: Path, chat: Chat, log: Path, version: int = 0
    ) -> None:
        self.engine = engine
        self.model = model
        self.chat = chat
        self.server = ServerProcess(engine, log)
        self._closed = False
        self._version = version
        self._prints: Sequence[Fingerprint] = ()  # of the weights that are served
        self._http = self.server.http
        endpoint = Endpoint(
            base_urls=(f"http://127.0.0.1:{engine.serve.policy.port}/v1",),
            model=NAME,
            temperature=engine.temperature,
            max_tokens=engine.max_new_tokens,
            timeout=600.0,
            deadline=1800.0,
            concurrency=256,
            extra_body={"return_token_ids": True, "chat_template_kwargs": chat.template_kwargs},
        )
        self._role = Role("policy", endpoint, Usage())  # rollouts are counted where they are asked for

    @property
    def version(self) -> int:
        """Training steps in the weights that `sample` uses."""
        return self._version

    def frozen(self) -> FrozenPolicy:
        """Itself: it stays as it is until it is told to `serve` other weights, and the session does not
        tell it so while a look works on it."""
        return self

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError` (see `trainer.chat.Chat`)."""
        self.chat.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order. Raises `PromptError` or `PolicyError`."""
        for prompt in dict.fromkeys(request.prompt for request in requests):
            self.check_prompt(prompt)
        self.server.start(self.model)
        questions = [
            Question(
                [{"role": "user", "content": r.prompt}],
                more={"seed": int(stream(seed, *r.key).integers(2**31))},
            )
            for r in requests
        ]
        samples = []
        for answer in self._role.ask(questions, "policy"):
            if not isinstance(answer, Answer):
                raise PolicyError(f"the frozen policy gave no sample: {answer.cause}")
            # As training's rollouts are decoded: the server leaves out what is half a character.
            text = self.chat.tokenizer.decode(list(answer.token_ids), skip_special_tokens=True)
            samples.append(Sample(text.strip(), answer.token_ids, answer.finish == "stop"))
        return samples

    def serve(self, folder: Path, version: int, prints: Sequence[Fingerprint]) -> None:
        """Serve other weights, and make sure of it: by `prints`, or else by a fresh start.

        Raises `PolicyServerError`.
        """
        self.model = folder
        if not (self.server.is_up and self._reloaded(prints)):
            self.server.stop()
        self.server.start(folder)
        if not (distance := self._distance(prints)) <= TOLERANCE:  # not a number is refused too
            raise PolicyServerError(
                f"the frozen policy does not serve {folder}: its log-probabilities are {distance:.3f} "
                f"nats a token from the trainer's (at most {TOLERANCE:g})"
            )
        self._version, self._prints = version, prints
        for old in folder.parent.glob("frozen-[0-9]*"):  # exports, those of earlier processes too
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)

    def save(self, folder: Path) -> None:
        """Keep the weights that are served as `folder/policy`: links, where the file system has them.

        Raises `OSError`.
        """
        shutil.copytree(self.model, folder / "policy", copy_function=_link)

    def _reloaded(self, prints: Sequence[Fingerprint]) -> bool:
        """Load the weights in place; true if they are proved to be there.

        That takes fingerprints of the same sequences for the old weights and for the new ones.
        """
        if not prints or [p.token_ids for p in prints] != [p.token_ids for p in self._prints]:
            return False
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.model)}}
        try:
            before = self._logprobs_of(prints)
            self._http.post("/collective_rpc", json=body).raise_for_status()
            self._http.post("/reset_prefix_cache").raise_for_status()
            ours = self._logprobs_of(prints) - before
        except (httpx.HTTPError, PolicyServerError):  # a server that cannot is started anew
            return False
        theirs = _joined(p.logprobs for p in prints) - _joined(p.logprobs for p in self._prints)
        return bool(np.abs(ours - theirs).mean() <= PROOF * np.abs(theirs).mean())

    def _distance(self, prints: Sequence[Fingerprint]) -> float:
        """Mean difference (nats a token) between the server's log-probabilities and those given."""
        if not prints:
            return 0.0
        return float(np.abs(self._logprobs_of(prints) - _joined(p.logprobs for p in prints)).mean())

    def _logprobs_of(self, prints: Sequence[Fingerprint]) -> Floats:
        """The server's log-probabilities (nats) of all their tokens, one after another."""
        return _joined(self.logprobs(one.token_ids) for one in prints)

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities (nats) of a sequence's tokens but the first, as served.

        Raises `PolicyServerError`.
        """
        body = {
            "model": NAME,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        reply = self._http.post("/v1/completions", json=body)
        if reply.status_code != 200:
            raise PolicyServerError(f"the frozen policy's server answers {reply.text[:300]}")
        at_each: list[dict[str, Any]] = reply.json()["choices"][0]["prompt_logprobs"][1:]
        return [at[str(token)]["logprob"] for at, token in zip(at_each, token_ids[1:], strict=True)]

    def close(self) -> None:
        """End the server and let go of connections; whoever waits for a sample waits no longer."""
        self.server.close()
        if not self._closed:
            self._closed = True
            self._role.close()


def _joined(parts: Iterable[Sequence[float]]) -> Floats:
    return np.concatenate([np.asarray(part, dtype=float) for part in parts])


def _link(source: str, target: str) -> None:
    """A second name for a file that nobody writes to, or else a copy."""
    try:
        os.link(os.path.realpath(source), target)  # a hub's cache has symbolic links
    except OSError:
        shutil.copy2(source, target)
