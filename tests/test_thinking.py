"""`roles.policy.chat_template_kwargs`: wherever the policy is prompted, the chat template gets them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.agents.policy import Request
from harnessrl.agents.usage import Usage
from harnessrl.specs.errors import SpecError
from harnessrl.specs.loader import RECIPES, load_run_spec
from harnessrl.specs.openrlhf import OpenrlhfEngine
from harnessrl.trainer.advice import advice
from harnessrl.trainer.chat import Chat
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.engine import Example
from harnessrl.trainer.local.engine import Engine
from harnessrl.trainer.local.model import chat_at_hand
from harnessrl.trainer.openrlhf.frozen import FrozenPolicy
from harnessrl.trainer.preflight import look_at_policy
from harnessrl.trainer.start import Past, make_engine
from measured import held_out, saying
from scripted_endpoint import ScriptedEndpoint
from transformers import AutoTokenizer

Spec = Callable[..., Path]
OFF = {"enable_thinking": False}
#: What a spec says, and how a response then begins in the prompt.
BEGINNINGS = [({}, tiny.THOUGHT), (OFF, tiny.NO_THOUGHT), ({"enable_thinking": True}, tiny.THOUGHT)]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a chat template that has it think by default."""
    return tiny.thinking(tiny_model, tmp_path_factory.mktemp("thinking") / "model")


def templated(begins: str, prompt: str = "Why?") -> str:
    """A prompt as the policy sees it."""
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{begins}"


def with_policy(paths: tiny.Paths, model: Path, kwargs: dict[str, Any]) -> Path:
    """The small spec with another policy."""
    content = yaml.safe_load(paths.spec.read_text())
    content["roles"]["policy"] = {"model": str(model), "chat_template_kwargs": kwargs}
    paths.spec.write_text(yaml.safe_dump(content))
    return paths.spec


# --- the local engine -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kwargs", "begins"), BEGINNINGS)
def test_the_local_engine_samples_and_trains_under_one_prompt(
    kwargs: dict[str, Any], begins: str, small: tiny.Paths, model: Path
) -> None:
    loaded = load_run_spec(with_policy(small, model, kwargs))
    engine = make_engine(loaded.spec, load_tasks(loaded), Past([], [], [], Usage(), 0, None))
    assert isinstance(engine, Engine)
    expected = templated(begins)
    for policy in (engine, engine.frozen()):
        assert engine.tokenizer.decode(policy.tokenize("Why?")) == expected
    chat = chat_at_hand(model, 160, loaded.spec.roles.policy.chat_template_kwargs)
    assert chat.tokenize("Why?") == engine.tokenize("Why?")
    (sample,) = engine.sample([Request("Why?", ("a",))], seed=1)
    (batch,) = engine._batches([Example("Why?", sample.token_ids, 1.0)])
    assert [engine.tokenizer.decode(prompt) for prompt in batch.prompts] == [expected]


def test_another_template_samples_other_responses(small: tiny.Paths, model: Path) -> None:
    def texts(kwargs: dict[str, Any]) -> list[str]:
        loaded = load_run_spec(with_policy(small, model, kwargs))
        engine = make_engine(loaded.spec, load_tasks(loaded), Past([], [], [], Usage(), 0, None))
        return [one.text for one in engine.sample([Request("Why?", (n,)) for n in range(8)], seed=1)]

    assert texts({}) == texts({"enable_thinking": True}) != texts(OFF)


def test_the_preflight_looks_under_the_specs_prompt(
    small: tiny.Paths, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = Chat.tokenize

    def tokenize(self: Chat, prompt: str) -> list[int]:
        ids = original(self, prompt)
        seen.append(self.tokenizer.decode(ids))
        return ids

    monkeypatch.setattr(Chat, "tokenize", tokenize)
    (finding,) = look_at_policy(load_run_spec(with_policy(small, model, OFF)).spec)
    assert finding.ok, finding
    assert seen and all(text.endswith(tiny.NO_THOUGHT) for text in seen)


# --- the frozen policy ----------------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{}, OFF, {"enable_thinking": True, "reasoning_effort": "low"}])
def test_the_frozen_policys_requests_carry_them(
    kwargs: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    with ScriptedEndpoint(saying(lambda prompt: "a text")) as server:
        engine = OpenrlhfEngine.model_validate(
            {"kind": "openrlhf", "device": "cpu", "serve": {"policy": {"port": server.port}}}
        )
        chat = Chat(AutoTokenizer.from_pretrained(model), 64, kwargs)
        policy = FrozenPolicy(engine, model, chat, tmp_path / "log")
        # Its server runs already, as far as it knows.
        policy.server.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
        policy.sample([Request("Why?", ("a",)), Request("How?", ("b",))], seed=0)
        policy.close()
    assert [body["chat_template_kwargs"] for body in server.bodies] == [kwargs, kwargs]


# --- evaluations ----------------------------------------------------------------------------------


def evaluate(file: Path, policy: Path | str, out: Path, samples: int = 0) -> list[dict[str, Any]]:
    """The responses of an evaluation."""
    done = tiny.invoke("evaluate", file, "--policy", policy, "--samples", samples, "--out", out)
    assert done.exit_code == 0, done.output
    return tiny.rows(out / "responses.jsonl")


def test_an_evaluated_endpoint_is_sent_them_where_there_are_any(spec: Spec, tmp_path: Path) -> None:
    with ScriptedEndpoint(saying(lambda prompt: "a text")) as policy:
        evaluate(spec(held_out(2)), policy.base_url, tmp_path / "a")
        assert len(policy.bodies) == 2
        assert not any("chat_template_kwargs" in body for body in policy.bodies)
        roles = {"policy": {"model": "any", "chat_template_kwargs": OFF}}
        evaluate(spec(held_out(2), roles=roles), policy.base_url, tmp_path / "b")
        assert [body.get("chat_template_kwargs") for body in policy.bodies[2:]] == [OFF, OFF]


def test_an_evaluated_folder_is_prompted_with_them(spec: Spec, model: Path, tmp_path: Path) -> None:
    def texts(kwargs: dict[str, Any], out: str) -> list[str]:
        roles = {"policy": {"model": str(model), "chat_template_kwargs": kwargs}}
        found = evaluate(spec(held_out(4), roles=roles), model, tmp_path / out, samples=2)
        return [row["response"] for row in found]

    thinking = texts({}, "a")
    assert texts({"enable_thinking": True}, "b") == thinking
    assert texts(OFF, "c") != thinking


def test_responses_to_another_template_are_not_taken_for_these(
    spec: Spec, model: Path, tmp_path: Path
) -> None:
    """The caches of one spec serve all its evaluations; another prompt's responses are apart."""
    evaluate(spec(held_out(2)), model, tmp_path / "out")
    roles = {"policy": {"model": str(model), "chat_template_kwargs": OFF}}
    file = spec(held_out(2), roles=roles)
    done = tiny.invoke("evaluate", file, "--policy", model, "--samples", 0, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert json.dumps(OFF) in done.output and "another evaluation" in done.output


# --- what is said before a run --------------------------------------------------------------------


@pytest.mark.parametrize(("kwargs", "lines"), [({}, 1), (OFF, 0), ({"enable_thinking": True}, 0)])
def test_a_template_that_can_think_and_was_not_told_whether(
    kwargs: dict[str, Any], lines: int, small: tiny.Paths, model: Path
) -> None:
    loaded = load_run_spec(with_policy(small, model, kwargs))
    found = [line for line in advice(loaded.spec, load_tasks(loaded)) if "may think" in line]
    assert len(found) == lines
    assert all("engine.max_new_tokens 10" in line for line in found)


def test_no_word_of_thinking_where_no_template_has_it(small: tiny.Paths) -> None:
    loaded = load_run_spec(small.spec)
    assert not any("think" in line for line in advice(loaded.spec, load_tasks(loaded)))


@pytest.mark.parametrize("name", ["qwen3.5-4b", "qwen3.5-9b"])
def test_shipped_specs_of_models_that_think_turn_it_off(name: str) -> None:
    spec = load_run_spec(RECIPES.parent / f"{name}.yaml").spec
    assert spec.roles.policy.chat_template_kwargs == OFF


def test_a_resume_is_told_that_they_differ(finished: tiny.Finished) -> None:
    content = yaml.safe_load(finished.spec.read_text())
    content["roles"]["policy"]["chat_template_kwargs"] = OFF
    other = finished.spec.with_name("other.yaml")
    other.write_text(yaml.safe_dump(content))
    done = tiny.invoke("train", other, "--resume", finished.run)
    assert done.exit_code == 2
    assert "roles.policy.chat_template_kwargs.enable_thinking" in done.output


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{tokenize: true}", "true: tokenize is no argument of a template"),
        ("{add_generation_prompt: false}", "false: add_generation_prompt is no argument of a template"),
        (
            "{enable_thinking: [0]}",
            "enable_thinking: must be true or false, not a list;",
        ),
        (
            "{enable_thinking: null}",
            "enable_thinking: must be true or false, not null;",
        ),
        ("false", "chat_template_kwargs: must be a mapping, not false"),
    ],
)
def test_what_cannot_be_an_argument_is_refused_at_its_place(
    written: str, says: str, small: tiny.Paths
) -> None:
    text = small.spec.read_text().replace("{model: ", f"{{chat_template_kwargs: {written}, model: ")
    small.spec.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_run_spec(small.spec)
    line = text[: text.index("chat_template_kwargs")].count("\n") + 1
    (problem,) = caught.value.problems
    assert problem.line == line
    assert says in str(problem)
