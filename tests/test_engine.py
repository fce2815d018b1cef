"""The local engine: sampling, training steps, and coming back from a checkpoint bit for bit."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import yaml
from harnessrl.agents.policy import PromptError, Request, Sample
from harnessrl.specs.schema import LocalEngine
from harnessrl.trainer.chat import Chat, doubtful
from harnessrl.trainer.local import decode as decode_module
from harnessrl.trainer.local import engine as engine_module
from harnessrl.trainer.local import grpo
from harnessrl.trainer.local.decode import compute_dtype
from harnessrl.trainer.local.engine import Engine, rate
from harnessrl.trainer.local.grpo import Example, TokenMismatchError
from harnessrl.trainer.local.model import load
from transformers import AutoTokenizer

PROMPTS = ["Please write a clear answer.", "Why?"]


def settings(**changes: Any) -> LocalEngine:
    plain = {"kind": "local", "max_new_tokens": 10, "max_prompt_tokens": 64, "threads": 1}
    return LocalEngine(**{**plain, "learning_rate": 1e-3, **changes})


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    return Engine(*load(tiny_model), settings())


def make(folder: Path, **changes: Any) -> Engine:
    return Engine(*load(folder), settings(**changes))


def requests(n: int, step: int = 0) -> list[Request]:
    return [Request(PROMPTS[i % 2], ("train", step, i)) for i in range(n)]


def examples(samples: list[Sample], advantages: list[float] | None = None) -> list[Example]:
    given = advantages or [1.0 if i % 2 else -1.0 for i in range(len(samples))]
    return [
        Example(PROMPTS[i % 2], s.token_ids, a)
        for i, (s, a) in enumerate(zip(samples, given, strict=True))
    ]


def weights(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.model.named_parameters()}


def step(engine: Engine, n: int = 8, number: int = 0) -> list[Sample]:
    samples = engine.sample(requests(n, number), seed=1)
    engine.train(examples(samples), 80.0)
    return samples


# --- sampling -------------------------------------------------------------------------------------


def test_samples_depend_on_the_seed_and_the_key_alone(engine: Engine) -> None:
    first = engine.sample(requests(6), seed=1)
    assert engine.sample(requests(6), seed=1) == first
    assert engine.sample(requests(6), seed=2) != first
    assert len({s.token_ids for s in first}) > 1
    same_key = engine.sample([Request(PROMPTS[0], ("train", 0, 0))] * 2, seed=1)
    assert same_key[0] == same_key[1] == first[0]


def test_samples_mostly_do_not_depend_on_the_batch(engine: Engine) -> None:
    together = engine.sample(requests(12), seed=1)
    alone = [engine.sample([request], seed=1)[0] for request in requests(12)]
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 9  # bf16 rounds


def test_more_requests_than_fit_one_batch_come_back_in_order(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = engine.sample(requests(7), seed=1)
    monkeypatch.setattr(decode_module, "DECODE_BATCH", 3)
    split = engine.sample(requests(7), seed=1)
    assert sum(a == b for a, b in zip(split, together, strict=True)) >= 5
    assert engine.sample([], seed=1) == []


def test_a_sample_says_whether_it_finished(engine: Engine) -> None:
    samples = engine.sample(requests(64), seed=3)
    ends = set(engine.model.generation_config.eos_token_id)
    assert {s.finished for s in samples} == {True, False}
    for s in samples:
        assert s.finished == (s.token_ids[-1] in ends)
        assert not set(s.token_ids[:-1]) & ends
        assert s.finished or len(s.token_ids) == 10
        text = engine.tokenizer.decode(list(s.token_ids), skip_special_tokens=True)
        assert s.text == text.strip()


def test_the_chat_template_is_used(engine: Engine) -> None:
    text = engine.tokenizer.decode(engine.tokenize("Why?"))
    assert text == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_a_prompt_is_never_cut(engine: Engine) -> None:
    long = "fox " * 100
    with pytest.raises(PromptError, match="max_prompt_tokens is 64: 'fox fox"):
        engine.check_prompt(long)
    with pytest.raises(PromptError):
        engine.sample([Request(PROMPTS[0], ("a",)), Request(long, ("b",))], seed=0)
    engine.check_prompt(PROMPTS[0])


def test_the_limit_itself_is_allowed(tiny_model: Path) -> None:
    engine = make(tiny_model)
    n = len(engine.tokenize(PROMPTS[0]))
    make(tiny_model, max_prompt_tokens=n).check_prompt(PROMPTS[0])
    with pytest.raises(PromptError, match=f"has {n} tokens"):
        make(tiny_model, max_prompt_tokens=n - 1).check_prompt(PROMPTS[0])


def test_all_tasks_that_are_too_long_are_told_at_once(small: tiny.Paths) -> None:
    """Before anything is loaded, by `validate`; and by `train`."""
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["train"][1]["prompt"] = "dog " * 300
    content["train"][3]["prompt"] = "word " * 200
    file.write_text(yaml.safe_dump(content))
    for command in ("validate", "train"):
        done = tiny.invoke(command, small.spec)
        assert done.exit_code == 2
        told = " ".join(done.output.split())
        assert "2 of 4 training tasks cannot be shown, first dog: a prompt has" in told
        assert "set engine.max_prompt_tokens to that or more" in told


@pytest.mark.parametrize("files", ["all", "without tokenizer.json"])
def test_what_is_refused_is_doubtful_by_the_tokenizer_alone(
    files: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    if files != "all":
        (folder / "tokenizer.json").unlink()
    chat = Chat(AutoTokenizer.from_pretrained(tiny_model), 150, {})
    texts = ["short", "fox " * 40, "the lazy dog " * 9, *("word " * n for n in range(20, 90, 3))]
    texts += ["a <|im_end|> b", "<|endoftext|>", "x <|im_start|>" * 30]
    refused = set()
    for text in texts:
        try:
            chat.check_prompt(text)
        except PromptError:
            refused.add(text)
    found = doubtful(texts, folder, 150)
    assert refused and refused <= found
    assert ("short" in found) == (files != "all")


def test_validate_counts_long_prompts_without_transformers(small: tiny.Paths) -> None:
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["train"][1]["prompt"] = "the " * 240
    file.write_text(yaml.safe_dump(content))
    spec = yaml.safe_load(small.spec.read_text())
    spec["engine"]["max_prompt_tokens"] = 900
    small.spec.write_text(yaml.safe_dump(spec))
    start = "import atexit, sys; from harnessrl.trainer.cli import main"
    said = "print('loaded' if 'transformers' in sys.modules else 'not loaded')"
    command = [
        sys.executable,
        "-c",
        f"{start}; atexit.register(lambda: {said}); main()",
        "validate",
        str(small.spec),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "not loaded"


# --- training -------------------------------------------------------------------------------------


def test_version_counts_training_steps(engine: Engine) -> None:
    assert engine.version == 0
    samples = step(engine)
    assert engine.version == 1
    engine.train(examples(samples, [0.0] * 8), 80.0)  # a step, though nothing was learnt
    assert engine.version == 2


def test_weights_move_and_embeddings_do_not(engine: Engine) -> None:
    before = weights(engine)
    samples = engine.sample(requests(8), seed=1)
    stats = engine.train(examples(samples), 80.0)
    moved = {name for name, p in engine.model.named_parameters() if not torch.equal(p, before[name])}
    assert "model.embed_tokens.weight" in before
    assert moved == {name for name in before if "embed" not in name and "lm_head" not in name}
    assert stats.kl is None
    assert stats.grad_norm > 0
    assert stats.clip_share == 0.0  # one optimizer step: the ratio is 1
    assert torch.equal(engine.model.lm_head.weight, engine.model.model.embed_tokens.weight)


def test_without_an_advantage_nothing_moves(engine: Engine) -> None:
    step(engine)  # so that the optimizer has momentum it must not use
    before, state = weights(engine), copy.deepcopy(engine.optimizer.state_dict())
    samples = engine.sample(requests(8), seed=1)
    stats = engine.train(examples(samples, [0.0] * 8), 80.0)
    assert all(torch.equal(p, before[name]) for name, p in engine.model.named_parameters())
    assert (stats.loss, stats.grad_norm, stats.clip_share, stats.kl) == (0, 0, 0, None)
    assert str(engine.optimizer.state_dict()) == str(state)


def test_rollouts_without_an_advantage_change_nothing(tiny_model: Path) -> None:
    """Leaving them out of the pass is exact: the normaliser is the whole batch's."""
    with_zero, without = make(tiny_model), make(tiny_model)
    samples = with_zero.sample(requests(8), seed=1)
    advantages = [1.0, 0.0, -1.0, 0.0, 0.5, 0.0, 0.0, -0.5]
    all_rollouts = examples(samples, advantages)
    with_zero.train(all_rollouts, 80.0)
    without.train([e for e in all_rollouts if e.advantage], 80.0)
    for (name, a), b in zip(with_zero.model.named_parameters(), without.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_good_rollouts_become_likelier_and_bad_ones_less(engine: Engine) -> None:
    samples = engine.sample(requests(8), seed=1)
    marked = examples(samples)
    good = [e for e in marked if e.advantage > 0]
    bad = [e for e in marked if e.advantage < 0]
    before = engine.mean_logprob(good), engine.mean_logprob(bad)
    for _ in range(3):
        engine.train(marked, 80.0)
    after = engine.mean_logprob(good), engine.mean_logprob(bad)
    assert None not in (*before, *after)
    assert after[0] > before[0] + 0.05  # type: ignore[operator]
    assert after[1] < before[1] - 0.05  # type: ignore[operator]


def test_several_epochs_clip_at_a_large_learning_rate(tiny_model: Path) -> None:
    engine = make(tiny_model, epochs=4, learning_rate=2e-2, clip=0.1)
    samples = engine.sample(requests(8), seed=1)
    stats = engine.train(examples(samples), 80.0)
    assert 0 < stats.clip_share <= 1
    assert engine.version == 1  # one training step, whatever the number of optimizer steps


def test_accumulating_over_batches_equals_one_batch(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, split = make(tiny_model), make(tiny_model)
    marked = examples(whole.sample(requests(8), seed=1))
    one = whole.train(marked, 80.0)
    monkeypatch.setattr(engine_module, "TRAIN_BATCH", 3)
    many = split.train(marked, 80.0)
    assert many.loss == pytest.approx(one.loss, abs=2e-3)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=0.05)  # bf16 passes


def test_the_gradient_is_clipped(tiny_model: Path) -> None:
    engine = make(tiny_model, max_grad_norm=1e-3)
    samples = engine.sample(requests(8), seed=1)
    stats = engine.train(examples(samples), 80.0)
    assert stats.grad_norm > 1e-3  # reported before clipping
    total = torch.stack([p.grad.norm() for p in engine.model.parameters() if p.grad is not None]).norm()
    assert float(total) <= 1.01e-3


def test_the_sampler_follows_the_weights(engine: Engine) -> None:
    step(engine)
    for (name, theirs), ours in zip(
        engine._sampler.model.named_parameters(), engine.model.parameters(), strict=True
    ):
        assert theirs.dtype == compute_dtype("cpu")
        assert torch.equal(theirs, ours.to(torch.bfloat16).to(theirs.dtype)), name
    assert all(p.dtype == torch.float32 for p in engine.model.parameters())


def test_small_updates_are_not_rounded_away(tiny_model: Path) -> None:
    """A learning rate far below bf16's resolution still moves the fp32 weights."""
    engine = make(tiny_model, learning_rate=1e-7)
    before = weights(engine)
    step(engine)
    name = "model.layers.0.mlp.up_proj.weight"
    moved = (dict(engine.model.named_parameters())[name] != before[name]).float().mean()
    assert moved > 0.3


def test_training_tokens_are_checked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_batch(*args: Any) -> grpo.Batch:
        batch = grpo.make_batch(*args)
        batch.responses_BT[0, 0] += 1
        return batch

    samples = engine.sample(requests(4), seed=1)
    monkeypatch.setattr(engine_module, "make_batch", wrong_batch)
    with pytest.raises(TokenMismatchError):
        engine.train(examples(samples), 40.0)


def test_a_prompt_tampered_with_in_place_is_noticed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must not compare the engine's token cache with itself."""

    def guided_batch(*args: Any) -> grpo.Batch:
        batch = grpo.make_batch(*args)
        batch.prompts[0][-1:] = [11, 12]
        return batch

    samples = engine.sample(requests(4), seed=1)
    monkeypatch.setattr(engine_module, "make_batch", guided_batch)
    with pytest.raises(TokenMismatchError, match="another prompt"):
        engine.train(examples(samples), 40.0)


def test_mean_logprob_is_per_token(engine: Engine) -> None:
    assert engine.mean_logprob([]) is None
    samples = engine.sample(requests(6), seed=1)
    marked = examples(samples)
    each = [engine.mean_logprob([e]) for e in marked]
    lengths = [len(e.response_ids) for e in marked]
    whole = engine.mean_logprob(marked)
    assert whole == pytest.approx(np.average(np.array(each, dtype=float), weights=lengths), abs=0.02)
    assert -7.5 < whole < -3.0  # a random policy over 512 tokens: about -log 512 = -6.2


# --- repeating and resuming -----------------------------------------------------------------------


def test_two_engines_repeat_each_other(tiny_model: Path) -> None:
    runs = []
    for _ in range(2):
        engine = make(tiny_model)
        runs.append([step(engine, number=n) for n in range(3)])
    assert runs[0] == runs[1]


def test_a_saved_engine_continues_bit_for_bit(tiny_model: Path, tmp_path: Path) -> None:
    straight = make(tiny_model)
    for n in range(2):
        step(straight, number=n)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    straight.save(folder)

    restored = Engine(*load(folder / "policy"), settings(), version=2)
    restored.load_optimizer(folder)
    assert restored.version == 2
    for n in (2, 3):
        assert step(restored, number=n) == step(straight, number=n)
    for (name, a), b in zip(straight.model.named_parameters(), restored.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(
        straight.optimizer.state_dict()["state"].values(),
        restored.optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a)


def test_without_its_optimizer_it_would_not(tiny_model: Path, tmp_path: Path) -> None:
    """The test above would notice a lost optimizer state."""
    straight = make(tiny_model)
    step(straight)
    straight.save(tmp_path)
    restored = Engine(*load(tmp_path / "policy"), settings(), version=1)
    step(straight, number=1)
    step(restored, number=1)
    pairs = zip(straight.model.parameters(), restored.model.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_the_product_is_a_plain_model_folder(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine = make(tiny_model)
    step(engine)
    engine.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why?"}], add_generation_prompt=True, return_dict=False
    )
    assert list(prompt) == engine.tokenize("Why?")
    for (name, a), b in zip(engine.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b), name
    ends = engine.model.generation_config.eos_token_id
    assert model.generation_config.eos_token_id == ends


def test_saving_writes_no_progress_bar(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would tear the live display apart at every checkpoint."""
    engine = make(tiny_model)
    capfd.readouterr()
    engine.save(tmp_path)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_the_learning_rate_warms_up(tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    spec = LocalEngine(kind="local", learning_rate=1e-3, warmup_steps=4)
    warming = Engine(model, tokenizer, spec)
    example = Example("Say something.", tuple(tokenizer.encode("the dog")), 1.0)
    rates = []
    for _ in range(6):
        warming.train([example], normaliser=2.0)
        rates.append(warming.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def schedule(kind: str, steps: int, warmup: int = 0) -> list[float]:
    """The share of the learning rate at every step of a run."""
    spec = settings(steps=steps, schedule=kind, warmup_steps=warmup)
    return [rate(spec, step) for step in range(1, steps + 1)]


SCHEDULES = ("constant", "linear", "cosine")


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, 0), (2, 0), (10, 0), (10, 1), (10, 4), (10, 9), (10, 10)]
)
def test_every_schedule_warms_up_to_the_whole_rate(kind: str, steps: int, warmup: int) -> None:
    rates = schedule(kind, steps, warmup)
    assert rates[:warmup] == pytest.approx([(n + 1) / warmup for n in range(warmup)])
    assert max(rates) == rates[max(0, warmup - 1)] == 1.0  # reached at step `warmup`, from 1
    assert all(rate > 0 for rate in rates), "the last step learns something too"
    after = rates[max(0, warmup - 1) :]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_run_shorter_than_its_warm_up_never_gets_there(kind: str) -> None:
    assert schedule(kind, 5, 10) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_constant_schedule_stays() -> None:
    assert schedule("constant", 6) == [1.0] * 6
    assert schedule("constant", 6, 2) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_linear_schedule_falls_evenly_to_zero_after_the_last_step() -> None:
    assert schedule("linear", 4) == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert schedule("linear", 6, 2) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_a_cosine_schedule_falls_slowly_then_fast_then_slowly() -> None:
    assert schedule("cosine", 4) == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
    assert schedule("cosine", 6, 2)[2:] == pytest.approx(schedule("cosine", 4))
    falls = -np.diff(schedule("cosine", 100))
    assert falls.argmax() in (48, 49, 50)
    assert falls[0] < falls[25] > falls[-1]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_rate_is_never_negative_even_after_the_end(kind: str) -> None:
    """A run that goes on under a spec of fewer steps is refused, but one step more must not unlearn."""
    for steps, warmup in ((1, 0), (5, 0), (5, 3), (5, 5), (5, 8)):
        spec = settings(steps=steps, schedule=kind, warmup_steps=warmup)
        assert rate(spec, steps + 1) >= 0


def test_the_optimizer_takes_the_scheduled_rate(tiny_model: Path) -> None:
    engine = make(tiny_model, steps=4, schedule="linear", warmup_steps=1)
    example = Example("Why?", tuple(engine.tokenizer.encode("the dog")), 1.0)
    rates = []
    for _ in range(4):
        engine.train([example], normaliser=2.0)
        rates.append(engine.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3])


def test_a_resumed_engine_goes_on_in_its_schedule(tiny_model: Path) -> None:
    """The step counts, not the optimizer's steps since the process started."""
    engine = Engine(*load(tiny_model), settings(steps=10, schedule="cosine"), version=7)
    example = Example("Why?", tuple(engine.tokenizer.encode("the dog")), 1.0)
    engine.train([example], normaliser=2.0)
    assert engine.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * schedule("cosine", 10)[7])


def test_kl_holds_the_policy_near_its_start(tiny_model: Path) -> None:
    """Rewarding one text moves a policy away; a strong KL term keeps most of it where it was."""

    def distance(kl_coef: float) -> tuple[list[float | None], float]:
        model, tokenizer = load(tiny_model)
        spec = LocalEngine(kind="local", learning_rate=1e-3, kl_coef=kl_coef)
        moving = Engine(model, tokenizer, spec)
        ids = tuple(tokenizer.encode("the quick brown fox"))
        kls = [
            moving.train([Example("Say something.", ids, 1.0)], normaliser=float(len(ids))).kl
            for _ in range(8)
        ]
        after = moving.mean_logprob([Example("Say something.", ids, 1.0)])
        assert after is not None
        return kls, after

    free, free_logprob = distance(0.0)
    held, held_logprob = distance(20.0)
    assert free == [None] * 8
    assert held[0] == pytest.approx(0.0, abs=0.01)  # nothing has moved yet
    assert all(k is not None and k >= 0 for k in held)
    assert held_logprob < free_logprob - 0.5


def test_without_advantages_only_the_kl_term_is_left(tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    spec = LocalEngine(kind="local", learning_rate=3e-4, kl_coef=1.0)
    pulled = Engine(other, tokenizer, spec, reference=model)
    ids = tuple(tokenizer.encode("the quick brown fox"))
    kls = [pulled.train([Example("Go on.", ids, 0.0)], normaliser=float(len(ids))).kl for _ in range(20)]
    assert kls[0] is not None and kls[-1] is not None and kls[-1] < kls[0]
