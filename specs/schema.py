"""The run spec: one YAML file describes a run. Units and defaults stand beside each field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from .engines import LocalEngine, Positive, SimEngine, engine_kind
from .faults import Checked, Fault, fault
from .guidance import StartGuidance
from .openrlhf import OpenrlhfEngine, server_address
from .secrets import Address, EnvName, Free, ModelName
from .strict import AtLeastOne, Many, Strict

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Scalar = bool | int | float | str

#: Arguments of transformers' `apply_chat_template` that never reach the template, or are the prompt's.
_TOKENIZERS_OWN = frozenset(
    "add_generation_prompt chat_template continue_final_message conversation documents max_length"
    " messages padding return_assistant_tokens_mask return_dict return_tensors tokenize"
    " tokenizer_kwargs tools truncation".split()
)


class Tasks(Strict):
    """Where the tasks come from."""

    files: AtLeastOne[str]
    """YAML task files, or rows (.jsonl, .json, .csv, .parquet) of this project's own form or a known data
    set's (docs/data.md); relative to the spec file."""


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
    redraws: Annotated[int, Field(ge=0)] = 0
    """A slot whose rewards tie carries no gradient: it is filled again, with another task of the same
    domain, at most so many times a step; after that the tied group stays. 0: every group stays."""


class GuidanceInterface(Strict, Checked):
    """g: text mounted on some rollouts."""

    evolve: bool = True
    """May the evolver change it?"""
    share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of a group's rollouts that carry what the evolver mounts."""
    start: Many[StartGuidance] = ()
    """Guidance that every task carries from the first step on, at most one entry a field."""
    max_overlap: Share = 0.5
    """Leak check: guidance is refused of which more, by runs of 4 words (8 characters in scripts without
    spaces), is in the task's reference. A line that holds a whole reference counts as all of it; of a
    reference shorter than a run, as one of the lines, and not at all where it is an ordinary word."""
    train_on: Literal["plain", "guided"] = "plain"
    """The prompt under which guided rollouts enter the loss."""
    mismatch: Literal["positive_only", "ignore"] = "positive_only"
    """`positive_only`: a guided rollout teaches only when its advantage is positive; `ignore`: like
    any other, although it was sampled under another prompt than the loss's."""

    def faults(self) -> Iterator[Fault]:
        """A field has one entry."""
        fields = [entry.field for entry in self.start]
        for n, name in enumerate(fields):
            if name in fields[:n]:
                first = fields.index(name)
                yield fault(f"start[{first}] is of this field already", ("start", n, "field"))


class RubricInterface(Strict):
    """c: what is scored."""

    evolve: bool = True
    """May the evolver change it?"""
    anchored: bool = False
    """Seed criteria stay as they are; only criteria that were added may be changed or retired."""


class Interfaces(Strict):
    """The three interfaces of the harness."""

    p: SamplingInterface = SamplingInterface()
    """Task sampling."""
    g: GuidanceInterface = GuidanceInterface()
    """Rollout guidance."""
    c: RubricInterface = RubricInterface()
    """Rubric criteria."""


class Reward(Strict):
    """How verdicts become rewards and advantages."""

    advantage: Literal["group_norm", "dr_grpo"] = "group_norm"
    """`group_norm`: (R - mean) / std; `dr_grpo`: R - mean."""
    baseline: Literal["group", "stratum"] = "group"
    """`stratum`: guided and plain rollouts of a group have separate means and stds."""
    max_dropped: Share = 0.2
    """Unscored criteria are dropped for the whole group up to this share of the rubric's |points|."""
    max_unscored: Share = 0.3
    """A run stops when, three steps in a row, a larger share of its verdicts is unscored."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of a group's criteria that its step leaves out, the same for all its rollouts."""


class PolicyRole(Strict, Checked):
    """The model under training."""

    model: ModelName
    """A folder, a model hub id, or `smollm2-wheel` (SmolLM2-135M-Instruct from the package index)."""
    chat_template_kwargs: dict[str, Scalar] = Field(default_factory=dict)
    """Arguments of its chat template, e.g. `{enable_thinking: false}`, for every prompt that it gets.
    What a policy thinks is part of its response: it takes from `engine.max_new_tokens`, and checks, judge
    and oracle see it."""

    def faults(self) -> Iterator[Fault]:
        """Arguments that are not the template's."""
        for name in self.chat_template_kwargs:
            if name in _TOKENIZERS_OWN:
                told = f"{name} is no argument of a template: the harness says how to tokenize prompts"
                yield fault(told, ("chat_template_kwargs", name))


class Prices(Strict):
    """What an endpoint charges."""

    input: Annotated[float, Field(ge=0.0)]
    """Per million prompt tokens, in any one currency."""
    output: Annotated[float, Field(ge=0.0)]
    """Per million completion tokens, in the same one."""


class Endpoint(Strict):
    """A role played by a model behind OpenAI-compatible endpoints."""

    base_urls: AtLeastOne[Address]
    """Where it is served, e.g. `http://localhost:8000/v1`; several are replicas, used by load."""
    model: ModelName
    """The model's name there."""
    api_key_env: EnvName | None = None
    """Environment variable that holds the key, never the key itself; default: the server needs none."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Sampling temperature."""
    max_tokens: Positive = 512
    """Longest answer (tokens), reasoning included."""
    timeout: Annotated[float, Field(gt=0.0)] = 60.0
    """Seconds an attempt may take."""
    retries: Annotated[int, Field(ge=0)] = 4
    """Further rounds over the replicas after timeouts, dropped connections, 429 and 5xx, with jittered
    backoff between them."""
    deadline: Annotated[float, Field(gt=0.0)] = 300.0
    """Seconds a question may take with all its attempts; then it has no answer."""
    concurrency: Positive = 32
    """Requests in flight, over all replicas."""
    requests_per_minute: Positive | None = None
    """Requests sent in a minute, on average; a burst of as many may come first."""
    tokens_per_minute: Positive | None = None
    """Tokens in a minute, prompt and answer, on average, reckoned before sending; bursts as above."""
    extra_body: Free = Field(default_factory=dict)
    """More fields of each request, e.g. `chat_template_kwargs: {enable_thinking: false}`."""
    prices: Prices | None = None
    """For the cost in the metrics and the log."""


class Judge(Endpoint):
    """The endpoint that decides criteria which no check decides."""

    batch: Literal["criterion", "rubric"] = "criterion"
    """`criterion`: a question a criterion, with shared prefixes; `rubric`: one for a whole response."""
    prompt: str | None = None
    """A Jinja2 template of your own instead of prompts/judge.md (`batch: rubric`: judge_rubric.md),
    relative to this file; what it is given: docs/judging.md, "A template of your own"."""
    cache: Annotated[int, Field(ge=0)] = 200_000
    """Verdicts kept on disk, the least recently used ones dropped; 0: none."""


class Roles(Strict):
    """Who plays which part."""

    policy: PolicyRole
    """Is trained (by `engine.kind: sim` nothing of it is used)."""
    judge: Judge | None = None
    """Decides the criteria that have no check; without it, tasks with such criteria are left out."""
    oracle: Endpoint | None = None
    """Compares or grades responses where `oracle.kind` says so; never the judge itself."""
    evolver: Endpoint | None = None
    """Attributes, and proposes updates, where `evolver.{attribute, propose}.role` say so."""


class Oracle(Strict):
    """Rubric-free quality, for diagnosis and the critic; never a reward."""

    kind: Literal["embedded", "pairwise", "reference", "none"] = "embedded"
    """`embedded`: programmatic measures of the task's `quality`; `pairwise`: `roles.oracle` compares
    responses; `reference`: it grades them beside the task's `reference`; `none`: collapse only is
    visible."""
    share: Share = 1.0
    """Share of training groups the oracle looks at; only these are evidence for the evolver."""
    opponents: Annotated[int, Field(ge=2, multiple_of=2)] = 4
    """Other responses that each one is compared with, an even number (pairwise only)."""
    anchors: Positive = 3
    """Fixed responses of each task that all others are measured by: its reference, if it has one, and
    the first plain ones the oracle sees (pairwise only)."""
    budget: Positive = 50_000
    """Most questions to `roles.oracle` in a run; what does not fit any more has no quality."""
    prompt: str | None = None
    """A Jinja2 template of your own instead of prompts/compare.md (`kind: reference`: grade.md),
    relative to this file; what it is given: docs/judging.md, "A template of your own"."""

    @property
    def asks(self) -> bool:
        """Is it `roles.oracle` that says what quality is?"""
        return self.kind in ("pairwise", "reference")


class Retrieve(Strict):
    """Node 1: what the evolver remembers."""

    within: Annotated[int, Field(ge=0)] = 16
    """At most so many rejections of the same task, the newest, so that none is proposed again; and
    changes that were accepted unmeasured and then cost it signal, so that they are taken back."""
    across: Annotated[int, Field(ge=0)] = 8
    """At most so many decisions on similar failures of other tasks, with what was measured or, where
    nothing was, how the task's signal rate moved afterwards."""


class Attribute(Strict):
    """Node 2: from statistics to the failure, and to the interface that can repair it."""

    role: Literal["statistics", "evolver"] = "statistics"
    """Who attributes: `statistics` of pairs alone; `evolver`, where these leave more than one interface
    open, that role's model says which of them to try first."""
    prompt: str | None = None
    """A Jinja2 template of your own instead of prompts/attribute.md, relative to this file (model only);
    what it is given: docs/judging.md, "A template of your own"."""
    budget: Positive | None = None
    """Most attributions asked of the model in a run; then statistics alone decide (model only)."""
    min_groups: Positive = 2
    """Groups of a task that must be on record before anything is concluded about it."""
    healthy_signal: Share = 0.85
    """A task is repaired when its signal rate is below this with confidence 1 - alpha."""


class Propose(Strict):
    """Node 3: one typed update."""

    role: Literal["catalogue", "evolver"] = "catalogue"
    """Who proposes: `catalogue`, from the task's pool, without an LLM; `evolver`, that role's model."""
    select: Literal["expected", "any"] = "expected"
    """`expected`: the candidate with the best expected gain, or none; `any`: one that was not tried, what
    memory speaks for first, whether or not recorded rollouts do (catalogue only)."""
    prompt: str | None = None
    """A Jinja2 template of your own instead of prompts/propose.md, relative to this file (model only);
    what it is given: docs/judging.md, "A template of your own"."""
    budget: Positive | None = None
    """Most proposals asked of the model in a run; then it proposes nothing any more (model only)."""


class CriticNode(Strict, Checked):
    """Node 4: measures a candidate on the frozen current policy."""

    test: Literal["measure", "none"] = "measure"
    """`none`: every candidate that can be applied is accepted, unmeasured."""
    rollouts: Annotated[int, Field(ge=2)] = 32
    """Fresh rollouts of each kind (plain, guided) that a candidate is measured on."""
    extended_rollouts: Annotated[int, Field(ge=2)] = 64
    """... and after one extension, when the first look leaves it open."""
    margin: Share = 0.05
    """Least gain in signal rate that is worth a change."""

    def faults(self) -> Iterator[Fault]:
        """The second look is no shorter than the first."""
        if self.extended_rollouts < self.rollouts:
            told = f"extended_rollouts {self.extended_rollouts} is below rollouts {self.rollouts}"
            yield fault(told, ("extended_rollouts",), ("rollouts",))


class Evolver(Strict, Checked):
    """The harness evolver: when it looks, and its nodes."""

    every: Positive = 2
    """Steps between two looks at the evidence. A look proposes something only if a diagnosis does."""
    mode: Literal["sync", "async"] = "sync"
    """`sync`: training waits for each look, and what it accepts acts from the next step on; `async`: a
    look runs beside training, on the policy and the evidence as they were when it began."""
    apply_lag: Positive = 1
    """What an `async` look after step s accepts is applied after step s + apply_lag, not sooner, and
    training waits if the look is late. At most `every`: a look is applied before the next one begins."""
    tasks_per_look: Positive = 3
    """At most this many tasks (the ones losing most signal) are worked on in one look."""
    memory: Literal["run", "look"] = "run"
    """`look`: nothing older than the last look is used, and nothing is retrieved."""
    max_staleness: Positive = 8
    """Evidence older than this many steps is not used."""
    alpha: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.10
    """Chance of accepting a candidate with no gain, shared by all looks and revisions at it."""
    max_revisions: Annotated[int, Field(ge=0)] = 1
    """How often a rejected candidate is revised, or another proposal asked for where one could not be
    used, before the failure is recorded (node 5)."""
    retrieve: Retrieve = Retrieve()
    """What is remembered."""
    attribute: Attribute = Attribute()
    """What is wrong, and whose it is."""
    propose: Propose = Propose()
    """What to try."""
    critic: CriticNode = CriticNode()
    """Whether it helps."""

    def faults(self) -> Iterator[Fault]:
        """A look is applied in time."""
        if self.mode == "async" and self.apply_lag > self.every:
            told = f"at most evolver.every {self.every}: a look is applied before the next one begins"
            yield fault(told, ("apply_lag",))

    @property
    def lag(self) -> int:
        """Steps between a look and what it accepts."""
        return self.apply_lag if self.mode == "async" else 0

    @property
    def horizon(self) -> int:
        """Steps back from now that evidence may come from."""
        return self.max_staleness if self.memory == "run" else min(self.every, self.max_staleness)


class Logging(Strict):
    """What a run leaves behind."""

    folder: str = "runs"
    """Run folders are made in here; relative to where the command runs."""
    checkpoint_every: Positive = 10
    """Steps between two checkpoints (the newest complete one is kept)."""
    probe_samples: Annotated[int, Field(ge=0)] = 8
    """Rollouts a task of the before / after probe; 0 skips the probe."""
    evaluate_every: Annotated[int, Field(ge=0)] = 0
    """Steps between two evaluations on validation tasks; the best one's policy is kept. 0: none."""
    validation_share: Annotated[float, Field(gt=0.0, le=0.5)] = 0.1
    """Share of each domain's training tasks that are set apart for them, one at least; they are never
    trained on."""
    validation_samples: Positive = 4
    """Rollouts a task of an evaluation."""


class RunSpec(Strict, Checked):
    """A whole run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the run folder."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Same seed, same run."""
    tasks: Tasks
    """What is trained on."""
    start: str | None = None
    """A harness file to start from (`harnessrl harness export`), relative to the spec file. A task that
    it lists has just the guidance that it lists."""
    interfaces: Interfaces = Interfaces()
    """The harness: what may co-evolve with the policy, and how."""
    reward: Reward = Reward()
    """From verdicts to advantages."""
    roles: Roles
    """Who plays which part."""
    oracle: Oracle = Oracle()
    """The rubric-free measure of quality."""
    evolver: Evolver = Evolver()
    """What changes the harness."""
    engine: Annotated[
        Annotated[LocalEngine, Tag("local")]
        | Annotated[OpenrlhfEngine, Tag("openrlhf")]
        | Annotated[SimEngine, Tag("sim")],
        Discriminator(engine_kind),
    ]
    """What rolls out and takes gradient steps."""
    logging: Logging = Logging()
    """What is kept."""

    def faults(self) -> Iterator[Fault]:
        """What does not fit over the sections."""
        yield from self._of_groups()
        for node in ("attribute", "propose"):
            if getattr(self.evolver, node).role == "evolver" and self.roles.evolver is None:
                told = "needs roles.evolver, and roles.evolver names no endpoint"
                yield fault(told, ("evolver", node, "role"))
        yield from self._of_oracle()
        if isinstance(self.engine, OpenrlhfEngine):
            yield from self._of_servers(self.engine)

    def _of_groups(self) -> Iterator[Fault]:
        size, fresh, share = self.engine.group_size, self.evolver.critic.rollouts, self.interfaces.g.share
        at = ("engine", "group_size")
        if fresh < size:
            told = f"evolver.critic.rollouts {fresh} is below engine.group_size {size}"
            yield fault(told, ("evolver", "critic", "rollouts"), at)
        if self.interfaces.g.evolve and int(share * size) < 1:
            told = (
                f"interfaces.g.share {share} of a group of {size} guides no rollout: a larger share, a "
                "larger engine.group_size, or interfaces.g.evolve: false"
            )
            yield fault(told, ("interfaces", "g", "share"), at)

    def _of_oracle(self) -> Iterator[Fault]:
        """What tells whether the judge's scores follow quality cannot be the judge."""
        asked, judge = self.roles.oracle, self.roles.judge
        if not self.oracle.asks:
            return
        if asked is None:
            yield fault("needs roles.oracle, and that names no endpoint", ("oracle", "kind"))
        elif judge is not None and judge.model == asked.model:
            same = {url.rstrip("/") for url in judge.base_urls} & {u.rstrip("/") for u in asked.base_urls}
            if same:
                told = f"roles.judge is the same model at {min(same)}; the oracle must not be the judge"
                yield fault(told, ("roles", "oracle", "model"))

    def _of_servers(self, engine: OpenrlhfEngine) -> Iterator[Fault]:
        """Each server that `engine.serve` starts is where its role looks for it, on a port of its own."""
        ports = {engine.controller.port: "engine.controller"}
        for name in ("policy", *engine.serve.roles()):
            server = f"engine.serve.{name}"
            role: Endpoint | None = getattr(self.roles, name) if name != "policy" else None
            at: tuple[str, ...] = ("engine", "serve", name)
            if name == "policy":
                port, at = engine.serve.policy.port, (*at, "port")
            elif role is None:
                yield fault(f"{server} is given, and roles.{name} names no endpoint", at)
                continue
            else:
                at = ("roles", name, "base_urls")
                try:
                    port = server_address(role.base_urls)[1]
                except ValueError as error:
                    yield fault(f"{server} starts a server for roles.{name}: {error}", at)
                    continue
            if port in ports:
                yield fault(
                    f"{ports[port]} and {server} share port {port}", at, ("engine", "controller", "port")
                )
            ports.setdefault(port, server)

    @property
    def evolves(self) -> bool:
        """Does any interface evolve? (`--recipe grpo` turns all three off.)"""
        return any((self.interfaces.p.evolve, self.interfaces.g.evolve, self.interfaces.c.evolve))

    def looks_after(self, step: int) -> bool:
        """Does the evolver look after this step? Not where what it accepts could not act any more."""
        rules, done = self.evolver, step + 1
        return self.evolves and done % rules.every == 0 and done + rules.lag < self.engine.steps
