"""The executor as OpenRLHF calls it, with a scripted controller over real HTTP and a scripted engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException
from harnessrl.trainer.openrlhf.client import ControllerError
from harnessrl.trainer.openrlhf.executor import (
    AgentExecutor,
    PromptTooLongError,
    TokenMismatchError,
    loss_tokens,
)
from harnessrl.trainer.openrlhf.wire import CONTROLLER_ENV, TOKEN_ENV, ClaimReply, SubmitRequest
from openrlhf.utils.agent import AgentExecutorBase

G = 4


class ScriptedController:
    """Guides the first half of a group; remembers what was handed in."""

    def __init__(self) -> None:
        self.submitted: list[SubmitRequest] = []
        self.failures = 0  # answers of 503 still to give
        self.refuses = False
        self.limit = 400
        self.template_kwargs: dict[str, bool] = {}
        self.tokens: set[str | None] = set()
        app = FastAPI()

        @app.post("/v1/claim")
        async def claim(where: dict[str, int]) -> ClaimReply:
            self._maybe_fail()
            guided = where["sample"] < G // 2
            prompt = f"question {where['slot']}"
            return ClaimReply(
                task_id=f"t{where['slot']}",
                harness_version=7,
                prompt=f"{prompt} with guidance" if guided else prompt,
                loss_prompt=prompt,
                guided=guided,
                max_prompt_tokens=self.limit,
                chat_template_kwargs=self.template_kwargs,
            )

        @app.post("/v1/submit")
        async def submit(rollout: SubmitRequest) -> dict[str, str]:
            self._maybe_fail()
            self.submitted.append(rollout)
            return {"state": "done"}

        config = uvicorn.Config(app, port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def _maybe_fail(self) -> None:
        if self.refuses:
            raise HTTPException(410, "the run has ended: the judge is silent")
        if self.failures:
            self.failures -= 1
            raise HTTPException(503, "busy")


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedController]:
    controller = ScriptedController()
    monkeypatch.setenv(CONTROLLER_ENV, f"http://127.0.0.1:{controller.port}")
    monkeypatch.setenv(TOKEN_ENV, "a-token")
    yield controller
    controller.server.should_exit = True
    controller.thread.join(timeout=10)


class Letters:
    """A tokenizer of characters, with a chat template."""

    def apply_chat_template(
        self,
        messages: Any,
        tokenize: bool,
        add_generation_prompt: bool,
        enable_thinking: bool | None = None,
    ) -> str:
        assert not tokenize
        thought = "" if enable_thinking is None else "<think>" if enable_thinking else "<answer>"
        return f"<user>{messages[0]['content']}<assistant>{thought}"

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens  # the template has them
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(chr(i) for i in ids if not (skip_special_tokens and i == 0))


class ScriptedEngine:
    """Answers with what it was asked, reversed, and an end token; remembers what it was asked."""

    def __init__(self, finish: str = "stop") -> None:
        self.asked: list[list[int]] = []
        self.finish = finish

    async def generate(self, ids: list[int], params: Any) -> Any:
        self.asked.append(ids)
        await asyncio.sleep(0.01 * (len(self.asked) % 3))
        tokens = [*ids[::-1][: params.max_tokens - 1], 0]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason=self.finish)])


def roll_out(
    engine: ScriptedEngine,
    slots: int = 2,
    max_length: int = 200,
    max_tokens: int | None = 12,
    executor: AgentExecutor | None = None,
    tokenizer: Any = None,
    **more: int,
) -> list[dict[str, Any]]:
    """As OpenRLHF's rollout actor does: the G samples of a slot at once, slots at once."""
    executor = executor or AgentExecutor()
    assert isinstance(executor, AgentExecutorBase)

    async def everything() -> list[dict[str, Any]]:
        calls = []
        for slot in range(slots):
            label = json.dumps({"step": 3, "slot": slot, **more})
            params = SimpleNamespace(max_tokens=max_tokens, logprobs=None)
            calls += [
                executor.execute("a label", label, params, max_length, tokenizer or Letters(), engine)
                for _ in range(G)
            ]
        return list(await asyncio.gather(*calls))

    return asyncio.run(everything())


def test_trains_under_the_plain_prompt_on_exactly_what_was_sampled(
    controller: ScriptedController,
) -> None:
    engine = ScriptedEngine()
    responses = roll_out(engine)
    assert len(responses) == 2 * G
    asked = [Letters().decode(ids, False) for ids in engine.asked]
    assert sum("with guidance" in text for text in asked) == G
    handed_in = {(s.slot, s.sample): s for s in controller.submitted}
    assert sorted(handed_in) == [(slot, i) for slot in range(2) for i in range(G)]
    for response in responses:
        logs = response["extra_logs"]
        assert list(logs) == ["slot", "sample", "guided", "harness_version"]
        assert all(isinstance(value, float) for value in logs.values())
        ((start, end),) = response["action_ranges"]
        tokens = response["observation_tokens"]
        plain = f"<user>question {int(logs['slot'])}<assistant>"
        assert Letters().decode(tokens[:start], False) == plain
        assert end == len(tokens)
        sampled = handed_in[int(logs["slot"]), int(logs["sample"])]
        assert tokens[start:] == sampled.token_ids
        assert sampled.finished
        assert "\0" not in sampled.text
        assert logs["guided"] == float(logs["sample"] < G // 2)
        assert logs["harness_version"] == 7.0
        assert response["rollout_log_probs"] is None


class Processor:
    """What OpenRLHF hands in for a model that can see: it answers in batches, and is no tokenizer."""

    tokenizer = Letters()
    apply_chat_template = tokenizer.apply_chat_template

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.tokenizer(text, add_special_tokens)["input_ids"]]}


def test_a_model_that_can_see_is_asked_in_text(controller: ScriptedController) -> None:
    engine, plain = ScriptedEngine(), ScriptedEngine()
    responses = roll_out(engine, tokenizer=Processor())
    assert responses == roll_out(plain) and sorted(engine.asked) == sorted(plain.asked)
    controller.limit = 30
    with pytest.raises(PromptTooLongError):
        roll_out(ScriptedEngine(), tokenizer=Processor())


@pytest.mark.parametrize(("thinks", "begins"), [(False, "<answer>"), (True, "<think>")])
def test_the_chat_template_gets_the_specs_arguments(
    controller: ScriptedController, thinks: bool, begins: str
) -> None:
    """In the prompt that is sampled under and in the one that is trained under."""
    controller.template_kwargs = {"enable_thinking": thinks}
    engine = ScriptedEngine()
    responses = roll_out(engine, slots=1)
    assert all(Letters().decode(ids, False).endswith(f"<assistant>{begins}") for ids in engine.asked)
    for response in responses:
        ((start, _),) = response["action_ranges"]
        prompt = Letters().decode(response["observation_tokens"][:start], False)
        assert prompt == f"<user>question 0<assistant>{begins}"


def test_another_attempt_at_a_slot_is_its_own_group(controller: ScriptedController) -> None:
    executor = AgentExecutor()
    for attempt in (0, 1, 2):
        executor._client = None  # every `roll_out` has an event loop of its own
        roll_out(ScriptedEngine(), slots=2 - attempt // 2, executor=executor, attempt=attempt)
    handed_in = [(s.attempt, s.slot, s.sample) for s in controller.submitted]
    expected = [(a, slot, i) for a in (0, 1, 2) for slot in range(2 - a // 2) for i in range(G)]
    assert sorted(handed_in) == expected


def test_the_token_budget_is_what_is_left_where_none_is_given(controller: ScriptedController) -> None:
    engine = ScriptedEngine("length")
    responses = roll_out(engine, slots=1, max_length=60, max_tokens=None)
    for response, ids in zip(responses, engine.asked, strict=True):
        (_, end) = response["action_ranges"][0]
        assert end <= 60
        assert response["truncated"]
        assert len(ids) < 60
    assert not any(sample.finished for sample in controller.submitted)


def test_a_busy_controller_is_waited_for(controller: ScriptedController) -> None:
    controller.failures = 6
    roll_out(ScriptedEngine())
    assert len(controller.submitted) == 2 * G


def test_a_run_that_has_ended_ends_the_rollout_with_the_reason(controller: ScriptedController) -> None:
    controller.refuses = True
    with pytest.raises(ControllerError, match="the judge is silent"):
        roll_out(ScriptedEngine())


def test_a_prompt_that_is_too_long_is_never_cut(controller: ScriptedController) -> None:
    controller.limit = 30  # the plain one fits, the guided one does not
    with pytest.raises(PromptTooLongError, match="t0 has 41 tokens"):
        roll_out(ScriptedEngine())


def test_what_does_not_fit_whole_is_not_trained_on() -> None:
    assert loss_tokens([1, 2], [3], 3) == [1, 2, 3]
    with pytest.raises(TokenMismatchError):
        loss_tokens([1, 2], [3, 4], 3)
    with pytest.raises(TokenMismatchError):
        loss_tokens([1, 2], [], 3)
