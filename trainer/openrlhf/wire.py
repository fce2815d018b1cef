"""What goes over the wire between OpenRLHF's processes and the controller service."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: Environment variables by which OpenRLHF's processes find the controller.
CONTROLLER_ENV = "HARNESSRL_CONTROLLER"
TOKEN_ENV = "HARNESSRL_TOKEN"
#: `cpu` on a machine without a GPU (`engine.device`).
DEVICE_ENV = "HARNESSRL_DEVICE"
#: The controller's exit status for a run that is finished: there is nothing left to serve.
FINISHED = 10


class Wire(BaseModel):
    """Immutable; unknown fields are refused, so that two versions never misread one another."""

    # The controller is told of a loss that is no number (JSON has none such), and ends the run with it.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class SlotSample(Wire):
    """One rollout of a step: sample `sample` (0 .. G - 1) of slot `slot`, redrawn `attempt` times."""

    step: int = Field(ge=0)
    slot: int = Field(ge=0)
    sample: int = Field(ge=0)
    attempt: int = Field(0, ge=0)


class ClaimReply(Wire):
    """What to roll out: `prompt` is sampled under, `loss_prompt` enters the loss."""

    task_id: str
    harness_version: int
    prompt: str
    loss_prompt: str
    guided: bool
    max_prompt_tokens: int
    chat_template_kwargs: dict[str, bool | int | float | str] = {}


class SubmitRequest(SlotSample):
    """One rollout handed in. Handing it in again changes nothing."""

    text: str
    token_ids: list[int]  # of the response, with its end token if it finished
    finished: bool


class RedrawReply(Wire):
    """Slots of a step that are to be rolled out anew, as their attempt `attempt`. None: it stands."""

    step: int
    slots: list[int]
    attempt: int


class AdvantagesReply(Wire):
    """advantages_SG and rewards_SG (None: no reward) of a step, slots and samples in order."""

    advantages: list[list[float]]
    rewards: list[list[float | None]]
    export: bool  # the controller will measure on the policy that comes out of this step


class Fingerprint(Wire):
    """How the policy sees one sequence: log-probabilities (nats) of its tokens but the first."""

    token_ids: list[int]
    logprobs: list[float]


class StepReport(Wire):
    """What the trainer says of a finished step; the numbers become metrics."""

    loss: float
    grad_norm: float
    clip_share: float
    kl: float | None = None
    plain_logprob_guided: float | None = None
    seconds: dict[str, float] = {}
    policy: str | None = None  # folder with the new weights, where they were asked for
    fingerprints: list[Fingerprint] = []


class Progress(Wire):
    """How far the controller is with something that takes time."""

    state: Literal["working", "done"]


class StateReply(Wire):
    """Where a run stands."""

    run: str
    steps: int
    steps_done: int
    tasks_per_step: int
    group_size: int
    harness_version: int


class PolicyFolder(Wire):
    """Where a policy lies."""

    policy: str


class Saved(Wire):
    """A checkpoint of OpenRLHF's that is complete, and where it lies."""

    path: str
    tag: str
