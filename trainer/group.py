"""A slot of a step: what is asked of the engine, and the group that comes back. G rollouts a group."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from ..agents.policy import Request, Sample
from ..agents.scoring.diagnosis import as_known, as_verdicts, collapse, pair_classes
from ..agents.scoring.quality import Quality
from ..agents.scoring.reward import Floats
from ..memory.records import Group
from ..memory.rollouts import Rollout
from ..specs.guidance import Shown, mentions_guidance
from ..specs.tasks import Criterion


@dataclass(frozen=True)
class Claim:
    """What one slot of a step is: a task, and G requests of which some may carry guidance.

    `prompt` is the plain prompt: what the loss is computed under by default.
    """

    step: int
    slot: int
    task_id: str
    domain: str
    harness_version: int
    prompt: str
    requests: tuple[Request, ...]
    shown: tuple[tuple[Shown, ...], ...]  # the guidance of each request; () for a plain one
    attempt: int = 0  # how often the slot was filled before

    @property
    def guided(self) -> tuple[bool, ...]:
        """Which requests carry guidance."""
        return tuple(bool(parts) for parts in self.shown)


def again(attempt: int) -> tuple[int, ...]:
    """Ends the names of a claim's random streams: those of another attempt at its slot are others."""
    return (attempt,) if attempt else ()


@dataclass(frozen=True)
class Submission:
    """One rollout handed in. Submitting a (step, slot, sample, attempt) again changes nothing."""

    step: int
    slot: int
    sample: int
    response: Sample
    attempt: int = 0


@dataclass
class SlotGroup:
    """A slot being filled, and what was concluded once all its rollouts were in."""

    claim: Claim
    rubric: tuple[Criterion, ...]  # c_t as of the claim
    responses: dict[int, Sample] = field(default_factory=dict)
    met_GK: Floats | None = None
    rewards_G: Floats | None = None
    quality: Quality | None = None
    advantages_G: Floats | None = None
    judged: Future[None] | None = None  # once complete; the four above are known when it is done
    aside: int | None = None  # set aside: the slot number it is on record under

    @property
    def tied(self) -> bool:
        """Do its rewards tie, so that it carries no gradient? A group without rewards is no tie."""
        assert self.rewards_G is not None and self.advantages_G is not None
        return collapse(self.rewards_G) != "unscored" and not self.advantages_G.any()

    @property
    def complete(self) -> bool:
        """Are all its rollouts in?"""
        return len(self.responses) == len(self.claim.requests)

    def record(self) -> Group:
        """The group for the event log. Everything about it must be known."""
        claim = self.claim
        assert self.met_GK is not None and self.rewards_G is not None
        assert self.quality is not None
        slot = claim.slot if self.aside is None else self.aside
        return Group(
            id=f"g-{claim.step:06d}-{slot}",
            step=claim.step,
            harness_version=claim.harness_version,
            slot=slot,
            task_id=claim.task_id,
            domain=claim.domain,
            rewards=as_known(self.rewards_G),
            quality=as_known(self.quality.q_N),
            resolution=self.quality.resolution,
            guided=list(claim.guided),
            met={c.id: as_verdicts(self.met_GK[:, k]) for k, c in enumerate(self.rubric)},
            collapse=collapse(self.rewards_G),
            pairs=pair_classes(self.rewards_G, self.quality.q_N, self.quality.resolution),
            set_aside=self.aside is not None,
        )

    def rollouts(self) -> list[Rollout]:
        """Its rollouts for the store, in sample order."""
        record = self.record()
        assert self.advantages_G is not None
        return [
            Rollout(
                step=record.step,
                slot=record.slot,
                sample=i,
                task_id=record.task_id,
                harness_version=record.harness_version,
                guided=record.guided[i],
                guidance=tuple(line for part in self.claim.shown[i] for line in part.as_lines()),
                gave_away=mentions_guidance(
                    self.responses[i].text, self.claim.prompt, self.claim.shown[i]
                ),
                response=self.responses[i].text,
                tokens=len(self.responses[i].token_ids),
                finished=self.responses[i].finished,
                reward=record.rewards[i],
                advantage=float(self.advantages_G[i]),
                quality=record.quality[i],
                verdicts={criterion: verdicts[i] for criterion, verdicts in record.met.items()},
            )
            for i in range(len(record.rewards))
        ]
