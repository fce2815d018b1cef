"""From specs to OpenRLHF's arguments: what its parser and assertions say, what is refused before."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.memory.files import write_atomic
from harnessrl.specs.engines import LocalEngine
from harnessrl.specs.errors import SpecError
from harnessrl.specs.loader import RECIPES, dump_yaml, load_run_spec
from harnessrl.specs.openrlhf import OpenrlhfEngine
from harnessrl.specs.schema import RunSpec
from harnessrl.trainer.openrlhf import flags, versions
from harnessrl.trainer.openrlhf.argv import argv, as_argv, conflict
from harnessrl.trainer.openrlhf.flags import FlagError
from harnessrl.trainer.openrlhf.slots_file import write_slots
from harnessrl.trainer.runfolder import RunFolder

SPECS = RECIPES.parent
SHIPPED = [
    path for path in sorted(SPECS.glob("*.yaml")) if load_run_spec(path).spec.engine.kind == "openrlhf"
]
RUN = RunFolder(Path("/runs/one"))

needs_openrlhf = pytest.mark.skipif(
    flags.installed_version() is None, reason="OpenRLHF is not installed (make test installs it)"
)


def spec_with(engine: dict[str, Any], **sections: Any) -> RunSpec:
    """A spec with an openrlhf engine."""
    return RunSpec.model_validate(
        {
            "name": "one",
            "tasks": {"files": ["tasks.yaml"]},
            "roles": {"policy": {"model": "Qwen/Qwen3.5-4B"}},
            "engine": {"kind": "openrlhf", **engine},
            **sections,
        }
    )


def refusal(engine: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(ValueError) as caught:
        spec_with(engine, **sections)
    return str(caught.value)


def parsed(spec: RunSpec) -> Any:
    return flags.parse(argv(spec, RUN)).args


# --- the real parser ------------------------------------------------------------------------------


@needs_openrlhf
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_openrlhf_accepts_a_shipped_spec_without_a_remark(path: Path) -> None:
    result = flags.parse(argv(load_run_spec(path).spec, RUN))
    assert result.remarks == ()
    assert result.args.reward.remote_url == ["agent"]
    assert result.args.critic.model_name_or_path is None


def test_there_are_shipped_specs() -> None:
    assert {path.stem for path in SHIPPED} >= {"qwen3.5-4b", "qwen3.5-9b", "smoke-1gpu", "smoke-cpu"}


def some_engine(rng: random.Random) -> dict[str, Any]:
    """Settings that fit together, over everything that an argument is made of."""
    nodes, size = rng.choice([1, 1, 2, 4]), rng.choice([1, 2, 4])
    per_node = size * rng.choice([1, 2])
    vllm: dict[str, Any] = {"tensor_parallel": size, "gpu_memory": rng.choice([0.3, 0.55, 0.9])}
    colocate = rng.random() < 0.5
    trainers = nodes * per_node
    if not colocate:
        vllm["engines"] = nodes * rng.choice([1, 2])
        training = rng.choice([1, 2, 3])
        trainers = nodes * training
        per_node = vllm["engines"] * size // nodes + training
    micro = rng.choice([1, 2, 3, 4])
    group = rng.choice([2, 4, 8])
    tasks = micro * trainers * rng.choice([1, 3])
    steps = rng.randrange(1, 400)
    return {
        "nodes": nodes,
        "gpus_per_node": per_node,
        "colocate": colocate,
        "vllm": vllm,
        "deepspeed": {
            "zero_stage": rng.choice([1, 2, 3] if colocate else [0, 1, 2, 3]),
            "offload": rng.random() < 0.5,
        },
        "micro_batch": micro,
        "gradient_checkpointing": rng.random() < 0.5,
        "steps": steps,
        "tasks_per_step": tasks,
        "group_size": group,
        "max_new_tokens": rng.randrange(1, 9000),
        "max_prompt_tokens": rng.randrange(1, 9000),
        "temperature": rng.choice([0.7, 1.0, 1.3]),
        "learning_rate": rng.choice([1e-7, 1e-6, 2e-5]),
        "schedule": rng.choice(["constant", "linear", "cosine"]),
        "warmup_steps": rng.randrange(0, steps),
        "clip": rng.choice([0.1, 0.2]),
        "kl_coef": rng.choice([0.0, 1e-3, 0.04]),
        "epochs": rng.choice([1, 2, 3]),
        "max_grad_norm": rng.choice([0.5, 1.0]),
        "cluster": "http://head:8265" if nodes > 1 else None,
        "controller": {"host": "10.0.0.5"} if nodes > 1 else {},
        "args": rng.choice([{}, {"ds.overlap_comm": True}, {"actor.adam.betas": [0.9, 0.99]}]),
    }


@needs_openrlhf
@pytest.mark.parametrize("seed", range(200))
def test_openrlhf_accepts_any_valid_spec(seed: int) -> None:
    rng = random.Random(seed)
    spec = spec_with(
        some_engine(rng),
        seed=rng.randrange(1000),
        reward={"advantage": rng.choice(["group_norm", "dr_grpo"])},
        logging={"checkpoint_every": rng.randrange(1, 50)},
    )
    engine = spec.engine
    assert isinstance(engine, OpenrlhfEngine)
    result = flags.parse(argv(spec, RUN))
    args = result.args
    assert result.remarks == ()
    # A step is tasks_per_step prompts with G rollouts each, and one optimizer step an epoch.
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == args.train.batch_size
    assert args.train.batch_size == engine.tasks_per_step * engine.group_size
    trainers = args.actor.num_nodes * args.actor.num_gpus_per_node
    assert args.train.batch_size % (args.train.micro_batch_size * trainers) == 0
    assert (args.ref.num_nodes, args.ref.num_gpus_per_node) == (
        args.actor.num_nodes,
        args.actor.num_gpus_per_node,
    )
    # Every GPU has something to do, and none two things at once.
    rollout = args.vllm.num_engines * args.vllm.tensor_parallel_size
    used = trainers if args.train.colocate_all else trainers + rollout
    assert used == engine.nodes * engine.gpus_per_node
    assert args.vllm.enable_sleep == args.ds.enable_sleep == engine.colocate
    # The schedule: OpenRLHF counts optimizer steps, and takes the ceiling.
    total = engine.steps * engine.epochs
    assert math.ceil(total * args.actor.lr_warmup_ratio) == engine.warmup_steps * engine.epochs
    assert args.actor.lr_scheduler in ("constant", "constant_with_warmup", "linear", "cosine")
    assert (args.actor.lr_scheduler == "constant") == (
        engine.schedule == "constant" and engine.warmup_steps == 0
    )
    assert args.data.max_len == engine.max_prompt_tokens + engine.max_new_tokens
    assert args.algo.kl.init_coef == engine.kl_coef
    assert args.algo.kl.use_loss == (engine.kl_coef > 0)
    assert args.algo.kl.estimator == ("k3" if engine.kl_coef else "k1")
    assert args.algo.advantage.estimator == spec.reward.advantage
    assert args.actor.adam.lr == engine.learning_rate
    assert args.actor.eps_clip_low_high == (engine.clip, engine.clip)
    assert args.train.seed == spec.seed
    assert args.ckpt.save_steps == spec.logging.checkpoint_every
    assert args.ckpt.save_hf and args.ckpt.load_enable and not args.ckpt.disable_ds
    assert args.train.agent_func_path.endswith("openrlhf/executor.py")


@needs_openrlhf
def test_without_a_gpu_nothing_is_shared_or_compiled() -> None:
    args = parsed(spec_with({"device": "cpu", "kl_coef": 0.1}))
    assert (args.train.colocate_all, args.train.colocate_actor_ref) == (False, False)
    assert (args.vllm.enable_sleep, args.ds.enable_sleep, args.vllm.enforce_eager) == (False, False, True)
    assert (args.vllm.sync_backend, args.ds.attn_implementation) == ("gloo", "eager")


@needs_openrlhf
def test_apart_from_vllm_the_reference_shares_the_policys_gpus() -> None:
    apart = {"gpus_per_node": 4, "colocate": False, "vllm": {"engines": 2}}
    assert parsed(spec_with({**apart, "kl_coef": 0.1})).train.colocate_actor_ref
    assert not parsed(spec_with(apart)).train.colocate_actor_ref  # there is none


@needs_openrlhf
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rollout.n_samples_per_promp", "8"], "unrecognized arguments"),  # no abbreviation
        (["--rollout.batch_size", "many"], "invalid int value"),
        (["--algo.advantage.estimator", "grpo"], "invalid choice"),
        (["--algo.advantage.estimator", "group_norm"], "requires n_samples_per_prompt > 1"),
    ],
)
def test_what_openrlhf_refuses_is_refused_in_its_words(arguments: list[str], says: str) -> None:
    with pytest.raises(FlagError, match=says):
        flags.parse(arguments)


@needs_openrlhf
def test_assertions_of_openrlhfs_train_function_count_too() -> None:
    arguments = argv(spec_with({"gpus_per_node": 4}), RUN)
    engines = arguments.index("--vllm.num_engines") + 1
    arguments[engines] = "3"
    with pytest.raises(FlagError, match="must be equal to vllm_num_engines"):
        flags.parse(arguments)


@needs_openrlhf
def test_checking_imports_neither_torch_nor_openrlhf() -> None:
    code = (
        "import sys; from harnessrl.trainer.openrlhf import flags; flags.names();"
        "print(sorted({'torch', 'ray', 'openrlhf', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_openrlhf
def test_it_is_the_version_that_was_read() -> None:
    assert flags.installed_version() == versions.OPENRLHF
    assert len(flags.names()) > 130


def test_our_tests_are_ours() -> None:
    """OpenRLHF's wheel puts a package `tests` into site-packages; ours is none, so nothing clashes."""
    here = Path(__file__).parent
    assert not (here / "__init__.py").exists()
    assert Path(tiny.__file__).parent == here


# --- engine.args ----------------------------------------------------------------------------------

SPEC = """\
name: one
tasks: {{files: [{tasks}]}}
roles: {{policy: {{model: Qwen/Qwen3.5-4B}}}}
engine:
  kind: openrlhf
  args:
    {line}
"""


def problems(tmp_path: Path, line: str) -> list[str]:
    path = tmp_path / "one.yaml"
    write_atomic(path, SPEC.format(tasks=SPECS / "tasks" / "starter.yaml", line=line))
    found = flags.problems(load_run_spec(path))
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in found]


CONFLICTS = {
    "rollout.micro_batch_size: 3": "32 samples a step must be a multiple of it",
    "train.agent_func_path: mine.py": "the harness sets it and relies on it",
    "ckpt.save_hf: false": "the harness sets it and relies on it",
    "train.batch_size: 16": "the harness sets it and relies on it",
    "rollout.top_p: 0.9": "the harness sets it and relies on it",
    "rollout.n_samples_per_prompt: 4": "set engine.group_size instead",
    "rollout.batch_size: 4": "set engine.tasks_per_step instead",
    "actor.adam.lr: 1e-6": "set engine.learning_rate instead",
    "algo.advantage.estimator: rloo": "set reward.advantage instead",
    "actor.model_name_or_path: other": "set roles.policy.model instead",
    "data.max_len: 4096": "set engine.max_prompt_tokens and engine.max_new_tokens instead",
    "algo.kl.init_coef: 0.1": "set engine.kl_coef instead",
    "algo.kl.target: 6.0": "it is not to be set: the KL term is engine.kl_coef",
    "algo.advantage.gamma: 0.9": "it is not to be set: the controller computes the advantages",
    "data.prompt_dataset: mine.jsonl": "it is not to be set: every row is a slot",
    "data.apply_chat_template: true": "it is not to be set: every row is a slot",
    "reward.clip_range: [-1, 1]": "it is not to be set: the controller computes the rewards",
    "train.async_enable: true": "it is not to be set: a step is rolled out by the policy",
    "train.async_queue_size: 2": "it is not to be set: a step is rolled out by the policy",
    "algo.dynamic_filtering_enable: true": "it is not to be set: the controller fills slots anew",
    "algo.dynamic_filtering_range: [0, 1]": "it is not to be set: the controller fills slots anew",
    "critic.max_norm: 1": "it is not to be set: the advantages need no critic",
    "eval.steps: 5": "it is not to be set: held-out tasks are measured by the harness",
    "actor.eps_clip_low_high: [0.1, 0.5]": "set engine.clip instead; this would go over it",
    "actor.optim: muon": "it is not to be set: engine.learning_rate is AdamW's",
    "actor.muon.lr: 0.02": "it is not to be set: engine.learning_rate is AdamW's",
    "actor.min_lr_ratio: 0.2": "it is not to be set: no engine.schedule has such a floor",
    "ckpt.max_num: 0": "must be 2 or more: OpenRLHF would delete the state that the run's newest",
    "ckpt.max_num: 1": "must be 2 or more: OpenRLHF would delete the state that the run's newest",
    "ckpt.max_num: '1'": "must be 2 or more: OpenRLHF would delete",
    "ckpt.max_num: [-3]": "must be 2 or more: OpenRLHF would delete",
    "actor.dual_clip: 1": "must be more than 1: OpenRLHF asserts it, but only once the model is loaded",
    "actor.dual_clip: '0.5'": "must be more than 1: OpenRLHF asserts it",
    "actor.dual_clip: 'nan'": "must be more than 1: OpenRLHF asserts it",
    "ckpt.max_mem: 100": "it is not to be set: it could delete what the run's newest checkpoint",
    "ckpt.best_metric_key: none": "it is not to be set: logging.evaluate_every keeps the best policy",
    "logger.wandb.key: true": "it is not to be set: a key stands in no file; put it into the "
    "environment variable WANDB_API_KEY",
    "local_rank: 0": "it is not to be set: Ray gives each process its GPU",
    "train.enable_ema: true": "it is not to be set: the weights that are measured and exported",
    "train.ema_beta: 0.9": "it is not to be set: the weights that are measured and exported",
    "train.colocate_critic_reward: true": "it is not to be set: there is neither a critic nor a reward",
    "ds.value_head_prefix: score": "it is not to be set: there is neither a critic nor a reward model",
    "ds.use_universal_ckpt: true": "it is not to be set: a run resumes from DeepSpeed's own checkpoints",
    "ds.param_dtype: fp16": "it is not to be set: vLLM rolls out in bf16",
    "ds.load_in_4bit: true": "it is not to be set: 4-bit weights can be trained by an adapter only",
    "ds.lora.rank: 8": "it is not to be set: after the first step OpenRLHF 0.11.2 sends vLLM an adapter",
}


@pytest.mark.parametrize("line", CONFLICTS)
def test_a_flag_that_the_harness_relies_on_is_refused_at_its_place(line: str, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, line)
    flag = line.partition(":")[0]
    assert problem.startswith(f"one.yaml:7:5: engine.args.{flag}: {CONFLICTS[line]}"), problem


#: What `engine.args` may set, of all that OpenRLHF knows: speed, memory, further terms of the loss, logs.
FREE = """
    actor.adam.betas actor.adam.eps actor.adam.weight_decay actor.aux_loss_coef actor.dual_clip
    actor.entropy_coef actor.freeze_visual_encoder actor.gradient_checkpointing_reentrant
    actor.loss_agg_mode actor.policy_loss_type ckpt.max_num data.dataloader_num_workers
    data.disable_fast_tokenizer ds.attn_implementation ds.deepcompile ds.enable_sleep
    ds.experts_implementation ds.grad_accum_dtype ds.overlap_comm ds.packing_samples
    ds.ring_attn_head_stride ds.ring_attn_size ds.tensor_parallel_size ds.use_liger_kernel ds.zpg
    logger.logging_steps logger.tensorboard_dir logger.wandb.group logger.wandb.org logger.wandb.project
    logger.wandb.run_name ref.offload rollout.max_tokens_per_gpu rollout.micro_batch_size
    train.colocate_actor_ref train.dynamic_batch_enable train.full_determinism_enable
    train.max_tokens_per_gpu vllm.enable_prefix_caching vllm.enable_sleep vllm.enforce_eager
    vllm.sync_backend vllm.sync_with_ray
""".split()


@needs_openrlhf
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_every_flag_of_openrlhf_is_decided(kl_coef: float) -> None:
    spec = spec_with({"kl_coef": kl_coef})
    assert sorted(flag for flag in flags.names() if conflict(flag, 2, spec) is None) == FREE


@needs_openrlhf
def test_a_dual_clip_that_openrlhf_takes(tmp_path: Path) -> None:
    for value in ("3.0", "false"):
        assert problems(tmp_path, f"actor.dual_clip: {value}") == []
    (problem,) = problems(tmp_path, "actor.dual_clip: high")
    assert "invalid float value: 'high'" in problem


@needs_openrlhf
def test_batches_by_tokens_take_the_place_of_the_micro_batch(tmp_path: Path) -> None:
    """Not beside one that was asked for."""
    assert problems(tmp_path, "train.dynamic_batch_enable: true") == []
    (problem,) = problems(tmp_path, "train.dynamic_batch_enable: true\n  micro_batch: 2")
    assert "leave engine.micro_batch out then; this would go over it" in problem


def test_weights_and_biases_take_their_key_from_the_environment() -> None:
    """OpenRLHF logs there where it is given some key; the real one is on no command line."""
    assert "--logger.wandb.key" not in argv(spec_with({}), RUN)
    words = argv(spec_with({"args": {"logger.wandb.project": "mine"}}), RUN)
    assert words[words.index("--logger.wandb.key") + 1] == "WANDB_API_KEY"


@needs_openrlhf
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ds.overlap_com: true", "has no flag --ds.overlap_com (did you mean ds.overlap_comm?)"),
        ("ds.overlap: true", "has no flag --ds.overlap"),
        ("ds.overlap_comm: 1", "is a switch: true or false"),
        ("ds.zpg: true", "needs a value, not true or false"),
        ("ds.zpg: two", "invalid int value: 'two'"),
        ("actor.loss_agg_mode: sum", "invalid choice: 'sum'"),
        ("actor.adam.betas: [0.9]", "expected 2 arguments"),
        ("actor.adam.betas: []", "must be a scalar or a list of scalars"),
        ("ds.zpg: {a: 1}", "must be a scalar or a list of scalars"),
        ("actor.adam.betas: [true, false]", "true and false are for switches"),
    ],
)
def test_a_wrong_flag_is_told_at_its_place(line: str, says: str, tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, line)
    assert problem.startswith("one.yaml:7:5: engine.args.")
    assert says in problem


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--ds.zpg: 2", "flags are written without dashes: ds.zpg"),
        ("DS.zpg: 2", "a flag has lowercase letters"),
        ("ds.zpg: {a: 1}", "must be a scalar"),
        ("ds.zpg: 2", None),
        ("ds.what_is_this: 2", None),
    ],
)
def test_without_openrlhf_the_form_is_checked(
    line: str, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flags, "installed_version", lambda: None)
    found = problems(tmp_path, line)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


@needs_openrlhf
def test_what_openrlhf_asserts_about_all_of_them_is_told_too(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "rollout.micro_batch_size: 0")
    assert problem.startswith("one.yaml:5:3: engine: OpenRLHF refuses this: ")


@needs_openrlhf
def test_arguments_go_over_what_may_be_chosen() -> None:
    args = parsed(
        spec_with({"args": {"ds.enable_sleep": False, "ckpt.max_num": 7, "ds.overlap_comm": True}})
    )
    assert (args.ds.enable_sleep, args.ckpt.max_num, args.ds.overlap_comm) == (False, 7, True)


def test_arguments_in_their_written_form() -> None:
    given = {"a.b": 1e-6, "c": True, "d": False, "e": [0.9, 0.99], "f": "x y", "g": -0.5}
    assert as_argv(given) == ["--a.b", "1e-06", "--c", "--e", "0.9", "0.99", "--f", "x y", "--g", "-0.5"]


def test_only_an_openrlhf_engine_has_arguments() -> None:
    local = load_run_spec(SPECS / "quickstart.yaml").spec
    with pytest.raises(TypeError, match=r"engine\.kind is local"):
        argv(local, RUN)


# --- the engine section ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"gpus_per_node": 4, "vllm": {"tensor_parallel": 8}}, "vllm.tensor_parallel 8 is more than"),
        ({"gpus_per_node": 3, "vllm": {"tensor_parallel": 2}}, "must fill the 3 GPUs"),
        ({"gpus_per_node": 4, "vllm": {"engines": 2}}, "must fill the 4 GPUs"),
        ({"gpus_per_node": 4, "colocate": False}, "vllm.engines is required"),
        ({"gpus_per_node": 4, "colocate": False, "vllm": {"engines": 4}}, "vLLM takes 4 of 4 GPUs"),
        ({"gpus_per_node": 3}, "= 32 must be a multiple of micro_batch"),
        ({"micro_batch": 5}, "must be a multiple of micro_batch 5 x 1"),
        ({"nodes": 2}, "nodes 2 need a running Ray cluster"),
        ({"nodes": 2, "cluster": "http://head:8265"}, "controller.host 127.0.0.1 is out of reach"),
        ({"controller": {"host": "0.0.0.0"}}, "not a wildcard"),
        ({"serve": {"policy": {"gpus": [0]}}}, "GPU 0 is promised 1.40 times"),
        ({"serve": {"policy": {"port": 8100}}}, "share port 8100"),
        ({"serve": {"judge": {"gpus": [2]}}}, "roles.judge names no endpoint"),
        ({"device": "cpu", "gpus_per_node": 2}, "device cpu has one node"),
        ({"device": "cpu", "serve": {"policy": {"gpus": [0]}}}, "serve.policy.gpus names GPUs"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(engine: dict[str, Any], says: str) -> None:
    assert says in refusal(engine)


@pytest.mark.parametrize(
    ("urls", "server", "says"),
    [
        (["http://127.0.0.1:8102/v1"], {}, "serve.judge.gpus is required"),
        (["http://127.0.0.1:8102/v1"], {"gpus": [1], "gpu_memory": 0.2}, "GPU 1 is promised 1.10 times"),
        (["http://127.0.0.1:8101/v1"], {"gpus": [2]}, "share port 8101"),
        (["http://127.0.0.1/v1"], {"gpus": [2]}, "not of the form http://HOST:PORT/v1"),
        (["http://127.0.0.1:8102"], {"gpus": [2]}, "not of the form http://HOST:PORT/v1"),
        (["http://a:1/v1", "http://a:2/v1"], {"gpus": [2]}, "one server has one"),
    ],
)
def test_a_server_for_a_role_is_where_the_role_looks(
    urls: list[str], server: dict[str, Any], says: str
) -> None:
    roles = {"policy": {"model": "p"}, "judge": {"base_urls": urls, "model": "j"}}
    assert says in refusal({"serve": {"judge": server}}, roles=roles)


def test_a_micro_batch_is_found_that_fits() -> None:
    def found(tasks: int, group: int) -> int:
        engine = spec_with({"tasks_per_step": tasks, "group_size": group}).engine
        assert isinstance(engine, OpenrlhfEngine)
        return engine.samples_at_once

    assert [found(4, 8), found(3, 5), found(7, 2), found(7, 7)] == [4, 3, 2, 1]


@pytest.mark.parametrize("name", ["quickstart", "smoke-1gpu"])
def test_the_same_spec_fits_either_engine(name: str, tmp_path: Path) -> None:
    """Only `kind` is changed, and what means nothing to the other engine left out."""
    spec = load_run_spec(SPECS / f"{name}.yaml").spec
    own = set(OpenrlhfEngine.model_fields) - set(LocalEngine.model_fields)
    shared = spec.engine.model_dump(exclude=own | {"kind"}, exclude_unset=True)
    kinds = []
    for kind in ("local", "openrlhf"):
        content = spec.model_dump(mode="json", exclude={"engine"}, exclude_none=True)
        content["tasks"] = {"files": [str(SPECS / "tasks" / "starter.yaml")]}
        path = tmp_path / f"{kind}.yaml"
        path.write_text(dump_yaml({**content, "engine": {"kind": kind, **shared}}))
        engine = load_run_spec(path).spec.engine
        kinds.append(engine.model_dump(include=set(LocalEngine.model_fields) - {"kind", "threads"}))
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    ("kind", "line", "says"),
    [
        (
            "openrlhf",
            "threads: 2",
            "threads is a key of kind local, not of openrlhf; allowed here: steps",
        ),
        ("local", "device: cpu", "device is a key of kind openrlhf, not of local; allowed here: steps"),
        ("sim", "clip: 0.2", "clip is a key of kind local or openrlhf, not of sim; allowed here: steps"),
        ("openrlhf", "thread: 2", "unknown key thread; allowed here: steps"),
    ],
)
def test_a_key_of_another_engine_is_named_as_such(
    kind: str, line: str, says: str, tmp_path: Path
) -> None:
    text = (SPECS / "smoke-1gpu.yaml").read_text()
    text = re.sub(r"engine:\n(.*\n)*?\nevolver", f"engine:\n  kind: {kind}\n  {line}\n\nevolver", text)
    path = tmp_path / "one.yaml"
    path.write_text(text.replace("tasks/starter.yaml", str(SPECS / "tasks" / "starter.yaml")))
    with pytest.raises(SpecError) as caught:
        load_run_spec(path)
    (problem,) = caught.value.problems
    assert problem.message.startswith(says)
    assert (problem.line, problem.column) == (text.splitlines().index(f"  {line}") + 1, 3)


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_every_place_of_every_step_in_order(tmp_path: Path) -> None:
    write_slots(tmp_path / "slots.jsonl", steps=3, tasks_per_step=2)
    rows = tiny.rows(tmp_path / "slots.jsonl")
    assert [json.loads(row["label"]) for row in rows] == [
        {"step": step, "slot": slot} for step in range(3) for slot in range(2)
    ]
    assert rows[3] == {"input": "slot 1/1", "label": '{"step": 1, "slot": 1}'}
