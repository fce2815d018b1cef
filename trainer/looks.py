"""What a look beside training works with: a snapshot of the run, and counters of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..agents.evolver.attributor import Attributor
from ..agents.evolver.beside import Outcome, Snapshot
from ..agents.evolver.critic import Critic
from ..agents.evolver.evidence import Memory
from ..agents.evolver.evolver import Evolver
from ..agents.evolver.llm import LlmProposer
from ..agents.evolver.proposers import Catalogue, Proposer
from ..agents.policy import Freezable, Policy
from ..agents.roles.client import Role
from ..agents.scoring.examiner import Examiner
from ..agents.scoring.judge import Judge
from ..agents.scoring.quality import AskedOracle, apart
from ..agents.scoring.scorer import Scorer
from ..agents.scoring.verdictcache import Answers, Branch, VerdictCache
from ..agents.usage import CountedPolicy, Usage
from ..specs.schema import RunSpec


def make_evolver(
    spec: RunSpec, graph: Any, memory: Memory, scorer: Scorer, critic: Critic, role: Role | None
) -> Evolver:
    """The evolver with the proposer and the attribution that the spec names; `role` is its model."""
    proposer: Proposer = Catalogue(memory, scorer, spec)
    attributor = None
    if role is not None and spec.evolver.propose.role == "evolver":
        proposer = LlmProposer(role, memory, spec)
    if role is not None and spec.evolver.attribute.role == "evolver":
        attributor = Attributor(role, memory, spec)
    return Evolver(graph, proposer, critic, memory, spec, attributor)


class Looks:
    """Makes the snapshots of one run (`agents.evolver.beside.Workshop`).

    Shared with training are endpoints with their limits, the oracle's anchors (a task has its own long
    before a look works on it), and files that are complete.
    """

    def __init__(
        self,
        spec: RunSpec,
        graph: Any,
        policy: Freezable,
        usage: Usage,
        memory: Memory,
        judge: Judge | None,
        oracle: AskedOracle | None,
        role: Role | None,
    ) -> None:
        self.spec = spec
        self.graph = graph
        self.policy = policy
        self.usage = usage
        self.memory = memory
        self.judge = judge
        self.oracle = oracle
        self.role = role
        self._branches: list[Branch] = []

    def snapshot(self, watched: Callable[[Policy], Policy]) -> Snapshot:
        """The run as it is now."""
        spec, usage, lent = self.spec, self.usage.copy(), 0
        judge, oracle = None, None
        if self.judge is not None:
            asked = self.judge.role.counted_in(usage)
            judge = Judge(asked, self.judge.spec, self._branch(self.judge.cache))
        if self.oracle is not None:
            ours = self.oracle.examiner
            theirs = Examiner(ours.role.counted_in(usage), ours.spec, self._branch(ours.cache))
            theirs.left = lent = ours.lend()
            oracle = apart(self.oracle, theirs)
        scorer = Scorer(spec.oracle, usage, spec.reward.max_dropped, judge, oracle)
        memory = self.memory.snapshot(scorer)
        frozen = CountedPolicy(watched(self.policy.frozen()), usage, "critic")
        role = None if self.role is None else self.role.counted_in(usage)
        critic = Critic(frozen, scorer, memory, spec)
        evolver = make_evolver(spec, self.graph, memory, scorer, critic, role)
        return Snapshot(evolver, usage, self.usage.copy(), lent)

    def resume(self, outcome: Outcome) -> None:
        """A look of an earlier process is over, and not yet due: what was set aside for it still is."""
        if self.oracle is not None:
            self.oracle.examiner.lend(outcome.lent)

    def join(self, outcome: Outcome) -> None:
        """The look is due: what it found out is the run's, and what it did not spend."""
        for branch in self._branches:
            branch.merge()
        self._branches = []
        if self.oracle is not None:
            asked = Usage.from_dict(outcome.usage).roles.get(self.oracle.examiner.role.name, {})
            self.oracle.examiner.take_back(outcome.lent - sum(used.calls for used in asked.values()))

    def _branch(self, cache: Answers | None) -> Answers | None:
        if not isinstance(cache, VerdictCache):
            return None
        branch = cache.branch()
        self._branches.append(branch)
        return branch
