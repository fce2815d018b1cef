"""From a spec to the arguments of `openrlhf.cli.train_ppo_ray` (0.11.2), flag by flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...specs.openrlhf import OpenrlhfEngine
from ...specs.schema import RunSpec
from ..runfolder import RunFolder

#: A flag's value: True stands for a switch, False for a switch that is not given.
Flags = dict[str, Any]

EXECUTOR = Path(__file__).with_name("executor.py")

#: Environment variable that wandb itself reads its key from.
WANDB_KEY_ENV = "WANDB_API_KEY"
#: Training states that OpenRLHF keeps at least: with one it deletes that, on which the run's newest
#: checkpoint counts, before it saves the next.
LEAST_STATES = 2

#: Flags (or, with a dot at the end, families of them) that nobody may give, and why.
NOT_HERE = {
    "algo.advantage.": "the controller computes the advantages (reward.advantage, reward.baseline)",
    "algo.dynamic_filtering": "the controller fills slots anew whose rewards tie (interfaces.p.redraws)",
    "algo.kl.": "the KL term is engine.kl_coef",
    "critic.": "the advantages need no critic model",
    "reward.": "the controller computes the rewards",
    "eval.": "held-out tasks are measured by the harness",
    "data.": "every row is a slot that the controller fills",
    "train.async": "a step is rolled out by the policy that the step before it left",
    "train.partial_rollout_enable": "a rollout has one policy",
    "train.num_episodes": "the rows are the steps (engine.steps)",
    "rollout.vllm_generate_batch_size": "a step is rolled out whole",
    # Measured: vLLM ends with "There is no module or parameter named 'base_model'".
    "ds.lora.": "after the first step OpenRLHF 0.11.2 sends vLLM an adapter under names it refuses",
    "ds.load_in_4bit": "4-bit weights can be trained by an adapter only (ds.lora), which does not work",
    "ds.param_dtype": "vLLM rolls out in bf16, and OpenRLHF 0.11.2 sends it no weights of another type",
    "ds.use_universal_ckpt": "a run resumes from DeepSpeed's own checkpoints",
    "ds.value_head_prefix": "there is neither a critic nor a reward model",
    "train.colocate_critic_reward": "there is neither a critic nor a reward model",
    "train.enable_ema": "the weights that are measured and exported are those that roll out",
    "train.ema_beta": "the weights that are measured and exported are those that roll out",
    "ckpt.max_mem": "it could delete what the run's newest checkpoint counts on; use ckpt.max_num",
    "ckpt.best_metric_key": "logging.evaluate_every keeps the best policy",
    "actor.optim": "engine.learning_rate is AdamW's, and Muon's updates go by a rate of their own",
    "actor.muon.": "engine.learning_rate is AdamW's, and Muon's updates go by a rate of their own",
    "actor.min_lr_ratio": "no engine.schedule has such a floor",
    "local_rank": "Ray gives each process its GPU",
    "logger.wandb.key": f"a key stands in no file; put it into the environment variable {WANDB_KEY_ENV}, "
    "and name a logger.wandb.project",
    "use_ms": "roles.policy.model is a folder or a model hub id",
}
#: ... except these, which change nothing that the harness relies on.
FREE = ("data.disable_fast_tokenizer", "data.dataloader_num_workers")
#: One of these among `engine.args` asks for Weights & Biases.
WANDB = ("logger.wandb.project", "logger.wandb.org", "logger.wandb.group")

_SCHEDULERS = {"linear": "linear", "cosine": "cosine"}


def argv(spec: RunSpec, run: RunFolder) -> list[str]:
    """The whole command line. Raises `TypeError` if the spec's engine is another one."""
    return as_argv(flags(spec, run))


def flags(spec: RunSpec, run: RunFolder) -> Flags:
    """Every flag with its value, by name without dashes; `engine.args` go over what may be overridden."""
    engine = _engine(spec)
    spelled = {flag: value for flag, (_, value) in _spelled(spec, engine).items()}
    return {**_needed(engine, run), **spelled, **_tuned(engine, run), **engine.args}


def logs_to_wandb(engine: OpenrlhfEngine) -> bool:
    """Do its arguments ask for Weights & Biases?"""
    return any(engine.args.get(flag) for flag in WANDB)


def conflict(flag: str, value: Any, spec: RunSpec) -> str | None:
    """Why `engine.args` must not set a flag, or not to this value; None if it may."""
    engine = _engine(spec)
    if spelled := _spelled(spec, engine).get(flag):
        return f"set {spelled[0]} instead"
    if flag == "actor.eps_clip_low_high":
        return "set engine.clip instead; this would go over it"
    if flag == "ckpt.max_num" and _is_below(value, LEAST_STATES):
        return (
            f"must be {LEAST_STATES} or more: OpenRLHF would delete the state that the run's newest "
            "checkpoint counts on before it has saved the next"
        )
    if flag == "actor.dual_clip" and value is not False and not _is_above(value, 1.0):
        return "must be more than 1: OpenRLHF asserts it, but only once the model is loaded"
    if flag == "rollout.micro_batch_size" and (told := _unequal(value, engine)):
        return told
    if flag == "train.dynamic_batch_enable" and engine.micro_batch is not None:
        return "leave engine.micro_batch out then; this would go over it"
    if flag in FREE:
        return None
    for name, reason in NOT_HERE.items():
        if flag == name or (flag.startswith(name) and not name.endswith("enable")):
            return f"it is not to be set: {reason}"
    if flag in _needed(engine, RunFolder(Path("run"))):
        return "the harness sets it and relies on it"
    return None


def as_argv(flags: Flags) -> list[str]:
    """`{"ds.zero_stage": 2, "ckpt.save_hf": True}` as arguments."""
    found: list[str] = []
    for flag, value in flags.items():
        if value is False:
            continue
        found.append(f"--{flag}")
        if value is not True:
            found += [_text(part) for part in (value if isinstance(value, list | tuple) else [value])]
    return found


def _engine(spec: RunSpec) -> OpenrlhfEngine:
    if not isinstance(spec.engine, OpenrlhfEngine):
        raise TypeError(f"engine.kind is {spec.engine.kind}, not openrlhf")
    return spec.engine


def _is_below(value: Any, least: int) -> bool:
    """What is no number at all is told with its type."""
    parts = value if isinstance(value, list) else [value]
    try:
        return any(float(part) < least for part in parts)
    except (TypeError, ValueError):
        return False


def _is_above(value: Any, bound: float) -> bool:
    """What is no number at all is told with its type."""
    parts = value if isinstance(value, list) else [value]
    try:
        return all(float(part) > bound for part in parts)
    except (TypeError, ValueError):
        return True


def _unequal(value: Any, engine: OpenrlhfEngine) -> str | None:
    """Why that many samples at once would leave the training GPUs with unequal shares, or None."""
    samples = engine.tasks_per_step * engine.group_size
    trainers = engine.nodes * engine.trainers_per_node
    if not isinstance(value, int) or value < 1 or samples % (value * trainers) == 0:
        return None  # what is no number of samples is told by OpenRLHF's parser
    return (
        f"{samples} samples a step must be a multiple of it x {trainers} training GPUs: with unequal "
        "shares they would wait for each other for ever"
    )


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _needed(engine: OpenrlhfEngine, run: RunFolder) -> Flags:
    """What the harness relies on."""
    folder = run.openrlhf
    return {
        "train.agent_func_path": EXECUTOR,
        "data.prompt_dataset": folder / "slots.jsonl",
        "data.input_key": "input",
        "data.label_key": "label",
        "train.num_episodes": 1,
        # One optimizer step on the whole batch an epoch, as the local engine takes it.
        "train.batch_size": engine.tasks_per_step * engine.group_size,
        # The critic samples the frozen policy from the same distribution.
        "rollout.top_p": 1,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "policy",
        "ckpt.save_hf": True,
        # Without a checkpoint in ckpt.path nothing is loaded: the same command starts and resumes.
        "ckpt.load_enable": True,
        "ckpt.disable_ds": False,
    }


def _spelled(spec: RunSpec, engine: OpenrlhfEngine) -> dict[str, tuple[str, Any]]:
    """What has a key of its own in the spec: flag -> (key, value)."""
    of_kl: dict[str, tuple[str, Any]] = {"algo.kl.init_coef": ("engine.kl_coef", engine.kl_coef)}
    if engine.kl_coef > 0:
        of_kl |= {
            "algo.kl.use_loss": ("engine.kl_coef", True),
            "algo.kl.estimator": ("engine.kl_coef", "k3"),
        }
    own = {
        "actor.model_name_or_path": ("roles.policy.model", spec.roles.policy.model),
        "train.seed": ("seed", spec.seed),
        "algo.advantage.estimator": ("reward.advantage", spec.reward.advantage),
        "ckpt.save_steps": ("logging.checkpoint_every", spec.logging.checkpoint_every),
    }
    in_engine = {
        "actor.num_nodes": ("nodes", engine.nodes),
        "ref.num_nodes": ("nodes", engine.nodes),
        "actor.num_gpus_per_node": ("gpus_per_node", engine.trainers_per_node),
        "ref.num_gpus_per_node": ("gpus_per_node", engine.trainers_per_node),
        "train.colocate_all": ("colocate", engine.shares_gpus),
        "vllm.num_engines": ("vllm.engines", engine.engines),
        "vllm.tensor_parallel_size": ("vllm.tensor_parallel", engine.vllm.tensor_parallel),
        "vllm.gpu_memory_utilization": (
            "vllm.gpu_memory",
            engine.vllm.gpu_memory if engine.device == "cuda" else 0.05,  # on a CPU: of the main memory
        ),
        "ds.zero_stage": ("deepspeed.zero_stage", engine.deepspeed.zero_stage),
        "ds.adam_offload": ("deepspeed.offload", engine.deepspeed.offload),
        "train.micro_batch_size": ("micro_batch", engine.samples_at_once),
        "actor.gradient_checkpointing_enable": ("gradient_checkpointing", engine.gradient_checkpointing),
        "rollout.batch_size": ("tasks_per_step", engine.tasks_per_step),
        "rollout.n_samples_per_prompt": ("group_size", engine.group_size),
        "rollout.max_new_tokens": ("max_new_tokens", engine.max_new_tokens),
        "data.max_len": (
            "max_prompt_tokens and engine.max_new_tokens",
            engine.max_prompt_tokens + engine.max_new_tokens,
        ),
        "rollout.temperature": ("temperature", engine.temperature),
        "actor.adam.lr": ("learning_rate", engine.learning_rate),
        "actor.lr_scheduler": ("schedule", _scheduler(engine)),
        "actor.lr_warmup_ratio": ("warmup_steps", _warmup_ratio(engine)),
        "actor.eps_clip": ("clip", engine.clip),
        "train.max_epochs": ("epochs", engine.epochs),
        "actor.max_norm": ("max_grad_norm", engine.max_grad_norm),
    }
    return own | {flag: (f"engine.{key}", value) for flag, (key, value) in in_engine.items()} | of_kl


def _tuned(engine: OpenrlhfEngine, run: RunFolder) -> Flags:
    """Sensible values that `engine.args` may override."""
    on_gpus = engine.device == "cuda"
    # OpenRLHF logs to Weights & Biases where it has a key; wandb takes the real one from the environment.
    wandb = {"logger.wandb.key": WANDB_KEY_ENV} if logs_to_wandb(engine) else {}
    return wandb | {
        "train.colocate_actor_ref": on_gpus and not engine.colocate and engine.kl_coef > 0,
        "vllm.enable_sleep": engine.shares_gpus,
        "ds.enable_sleep": engine.shares_gpus,
        "vllm.enable_prefix_caching": on_gpus,  # the G rollouts of a group share their prompt
        "vllm.sync_backend": "nccl" if on_gpus else "gloo",
        "vllm.enforce_eager": not on_gpus,
        "ds.attn_implementation": "flash_attention_2" if on_gpus else "eager",
        "rollout.micro_batch_size": engine.samples_at_once,
        "actor.adam.betas": [0.9, 0.999],  # as on `local`
        "ckpt.max_num": 2,
        "logger.logging_steps": 1,
        "logger.tensorboard_dir": run.tensorboard,
        "logger.wandb.run_name": "openrlhf",  # names the folder inside tensorboard_dir too
    }


def _scheduler(engine: OpenrlhfEngine) -> str:
    """The scheduler's name in transformers, whose `constant` knows no warm-up."""
    return _SCHEDULERS.get(engine.schedule) or (
        "constant_with_warmup" if engine.warmup_steps else "constant"
    )


def _warmup_ratio(engine: OpenrlhfEngine) -> float:
    """A ratio of which OpenRLHF makes exactly warmup_steps: it takes ceil(ratio x optimizer steps)."""
    if not engine.warmup_steps:
        return 0.0
    return (engine.warmup_steps * engine.epochs - 0.5) / (engine.steps * engine.epochs)
