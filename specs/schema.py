"""The run spec: one YAML file describes a run. Units and defaults stand beside each field."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .tasks import AtLeastOne, Strict

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]


class Tasks(Strict):
    """Where the tasks come from."""

    files: AtLeastOne[str]
    """YAML task files, or JSONL rows in IFEval's schema; relative to the spec file."""


class SamplingInterface(Strict):
    """p: which tasks enter the batch."""

    evolve: bool = True
    """May the evolver change it?"""
    domain_shares: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Fixed share of each domain (normalised). Empty: proportional to the domain's tasks."""
    paused_weight: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Weight of a paused task (an ordinary one has 1): the floor that re-probes it."""
    min_effective_tasks: Annotated[float, Field(ge=1.0)] = 6.0
    """A change of p that leaves fewer effective tasks (1 / sum p^2) is rejected."""


class GuidanceInterface(Strict):
    """g: text mounted on some rollouts."""

    evolve: bool = True
    """May the evolver change it?"""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of a group's rollouts that carry mounted guidance."""
    train_on: Literal["plain", "guided"] = "plain"
    """The prompt under which guided rollouts enter the loss."""
    mismatch: Literal["positive_only", "ignore"] = "positive_only"
    """`positive_only`: a guided rollout teaches only when its advantage is positive."""


class RubricInterface(Strict):
    """c: what is scored."""

    evolve: bool = True
    """May the evolver change it?"""


class Interfaces(Strict):
    """The three interfaces of the harness."""

    p: SamplingInterface = SamplingInterface()
    g: GuidanceInterface = GuidanceInterface()
    c: RubricInterface = RubricInterface()


class Reward(Strict):
    """How verdicts become rewards and advantages (DESIGN: section 3)."""

    advantage: Literal["group_norm", "dr_grpo"] = "group_norm"
    """`group_norm`: (R - mean) / std; `dr_grpo`: R - mean."""
    baseline: Literal["group", "stratum"] = "group"
    """`stratum`: guided and plain rollouts of a group have separate means and stds."""
    max_dropped: Share = 0.2
    """Unscored criteria are dropped for the whole group up to this share of the rubric's |points|."""


class PolicyRole(Strict):
    """The model under training."""

    model: str
    """A folder, a model hub id, or `smollm2-wheel` (SmolLM2-135M-Instruct from the package index)."""


class Roles(Strict):
    """Who plays which part."""

    policy: PolicyRole


class Oracle(Strict):
    """Rubric-free quality, for diagnosis and the critic; never a reward."""

    kind: Literal["embedded", "none"] = "embedded"
    """`embedded`: programmatic measures of the task's `quality`; `none`: collapse only is visible."""
    share: Share = 1.0
    """Share of training groups the oracle looks at; only these are evidence for the evolver."""


class Evolver(Strict):
    """The harness evolver and its critic (DESIGN: section 6)."""

    every: Positive = 2
    """Steps between two looks at the evidence. A look proposes something only if a diagnosis does."""
    tasks_per_look: Positive = 3
    """At most this many tasks (the ones losing most signal) are worked on in one look."""
    min_groups: Positive = 2
    """Groups of a task that must be on record before anything is concluded about it."""
    max_staleness: Positive = 8
    """Evidence older than this many steps is not used."""
    healthy_signal: Share = 0.85
    """A task is repaired when its signal rate is below this with confidence 1 - alpha."""
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.10
    """Chance of accepting a candidate with no gain, shared by all looks and revisions at it."""
    margin: Share = 0.05
    """Least gain in signal rate that is worth a change."""
    rollouts: Annotated[int, Field(ge=2)] = 32
    """Fresh rollouts the critic measures a candidate on."""
    extended_rollouts: Annotated[int, Field(ge=2)] = 64
    """... and after one extension, when the first look leaves it open."""
    max_revisions: Annotated[int, Field(ge=0)] = 1
    """How often a rejected candidate is revised before the failure is recorded."""

    @model_validator(mode="after")
    def _extends(self) -> Evolver:
        if self.extended_rollouts < self.rollouts:
            raise ValueError(
                f"extended_rollouts {self.extended_rollouts} is below rollouts {self.rollouts}"
            )
        return self


class LocalEngine(Strict):
    """GRPO in one process with torch."""

    kind: Literal["local"]
    steps: Positive = 28
    """Training steps."""
    tasks_per_step: Positive = 4
    """Groups in a step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """G: rollouts in a group."""
    max_new_tokens: Positive = 40
    """Longest response (tokens)."""
    max_prompt_tokens: Positive = 512
    """A longer prompt (with its guidance) is an error, never cut."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature of training rollouts."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 2e-5
    """AdamW learning rate, once warm."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """The learning rate rises linearly over the first so many steps. While it is low, the evolver can
    repair the rubrics before the policy has moved far after them."""
    clip: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """PPO clipping range epsilon of the probability ratio."""
    kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of KL(pi || the policy at the start) in the loss (k3 estimate, nats a token); 0: none."""
    epochs: Positive = 1
    """Optimizer steps on each batch (with 1, the ratio is 1 and nothing clips)."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Gradient norm is clipped to this."""
    threads: Positive | None = None
    """CPU threads; default: all cores."""


class Logging(Strict):
    """What a run leaves behind."""

    folder: str = "runs"
    """Run folders are made in here; relative to where the command runs."""
    checkpoint_every: Positive = 10
    """Steps between two checkpoints (the newest complete one is kept)."""
    probe_samples: Annotated[int, Field(ge=0)] = 8
    """Rollouts a task of the before / after probe; 0 skips the probe."""


class RunSpec(Strict):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the run folder."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Same seed, same run."""
    tasks: Tasks
    interfaces: Interfaces = Interfaces()
    reward: Reward = Reward()
    roles: Roles
    oracle: Oracle = Oracle()
    evolver: Evolver = Evolver()
    engine: LocalEngine
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _groups_fit(self) -> RunSpec:
        size = self.engine.group_size
        if self.evolver.rollouts < size:
            raise ValueError(
                f"evolver.rollouts {self.evolver.rollouts} is below engine.group_size {size}"
            )
        if self.interfaces.g.evolve and int(self.interfaces.g.share * size) < 1:
            raise ValueError(
                f"interfaces.g.share {self.interfaces.g.share} of a group of {size} guides no rollout"
            )
        return self

    @property
    def evolves(self) -> bool:
        """Does any interface evolve? (`--recipe grpo` turns all three off.)"""
        return any((self.interfaces.p.evolve, self.interfaces.g.evolve, self.interfaces.c.evolve))
