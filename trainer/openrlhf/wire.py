"""What goes over the wire between OpenRLHF's processes and the controller service."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Environment variables by which OpenRLHF's processes find the controller.
CONTROLLER_ENV = "HARNESSRL_CONTROLLER"
TOKEN_ENV = "HARNESSRL_TOKEN"
#: Instead of the token, the file that it stands in.
TOKEN_FILE_ENV = "HARNESSRL_TOKEN_FILE"
#: `cpu` on a machine without a GPU (`engine.device`).
DEVICE_ENV = "HARNESSRL_DEVICE"
#: The controller's exit status for a run that is finished: there is nothing left to serve.
FINISHED = 10


class Wire(BaseModel):
    """Immutable; unknown fields are refused, so that two versions never misread one another."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # JSON has no such numbers, and the controller has to hear of a loss that is none.
        ser_json_inf_nan="strings",
        use_attribute_docstrings=True,  # what /openapi.json says of a field
    )


class SlotSample(Wire):
    """One rollout of a step."""

    step: int = Field(ge=0)
    """Which step, from 0."""
    slot: int = Field(ge=0)
    """Which of the step's tasks_per_step places, from 0."""
    sample: int = Field(ge=0)
    """Which of the slot's group_size rollouts, from 0."""
    attempt: int = Field(0, ge=0)
    """How often the slot was redrawn before."""


class ClaimReply(Wire):
    """What to roll out."""

    task_id: str
    """The task that is in the slot."""
    harness_version: int
    """The harness under which the step is taken."""
    prompt: str
    """The user message to sample a response to, with its guidance if it has some."""
    loss_prompt: str
    """The user message that enters the loss, in place of `prompt`."""
    guided: bool
    """Does `prompt` carry guidance?"""
    max_prompt_tokens: int
    """A longer prompt, in tokens, is an error; it is never cut."""
    chat_template_kwargs: dict[str, bool | int | float | str] = {}
    """What the chat template is told (roles.policy.chat_template_kwargs)."""


class SubmitRequest(SlotSample):
    """One rollout handed in. Handing it in again changes nothing."""

    text: str
    """The response, without special tokens."""
    token_ids: list[int]
    """The response as sampled, with its end token if it finished."""
    finished: bool
    """It ended by itself, not at max_new_tokens."""


class RedrawReply(Wire):
    """Slots of a step that are to be rolled out anew."""

    step: int
    """Which step, from 0."""
    slots: list[int]
    """Which slots; none: the step stands as it is."""
    attempt: int
    """The attempt that they are rolled out as."""


class AdvantagesReply(Wire):
    """What a step's rollouts are worth, a row a slot and a number a sample, in order."""

    advantages: list[list[float]]
    """0 where there is no reward."""
    rewards: list[list[float | None]]
    """null: unscored."""
    export: bool
    """The controller will measure on the policy that comes out of this step: it has to be exported."""


class Fingerprint(Wire):
    """How the policy sees one sequence."""

    token_ids: list[int]
    """The sequence."""
    logprobs: list[float]
    """Log-probabilities (nats) of its tokens but the first."""


class StepReport(Wire):
    """What the trainer says of a finished step; the numbers become metrics. One that is NaN or infinite
    (as a string, "NaN" or "Infinity") ends the run."""

    loss: float
    """The whole loss, mean of a token."""
    grad_norm: float
    """Of the gradient, before clipping."""
    clip_share: float
    """Share of the response tokens whose gradient the clip removed."""
    kl: float | None = None
    """Nats a token, from the policy at the start; null: not measured."""
    plain_logprob_guided: float | None = None
    """Nats a token of guided rollouts under the plain prompt; null: there were none."""
    seconds: dict[str, float] = {}
    """What the step took, by part."""
    policy: str | None = None
    """Folder with the new weights, where an export was asked for."""
    fingerprints: list[Fingerprint] = []
    """How the rollout engine sees a few sequences under the new weights: proof for the frozen policy."""

    @field_validator("grad_norm")
    @classmethod
    def _no_norm_is_negative(cls, norm: float) -> float:
        """DeepSpeed (0.19.6) tells -1 where the norm is NaN or infinite."""
        return math.nan if norm < 0 else norm


class Progress(Wire):
    """How far the controller is with something that takes time."""

    state: Literal["working", "done"]
    """`working`: ask again."""


class StateReply(Wire):
    """Where a run stands."""

    run: str
    """Name of the run folder."""
    steps: int
    """Steps of the whole run."""
    steps_done: int
    """Steps that are done, so the number of the open one."""
    tasks_per_step: int
    """Slots a step."""
    group_size: int
    """Rollouts a slot."""
    harness_version: int
    """The newest harness."""


class PolicyFolder(Wire):
    """A policy as a plain model folder."""

    policy: str
    """Its path, on a file system that the controller sees."""


class Saved(Wire):
    """A checkpoint of OpenRLHF's that is complete."""

    path: str
    """OpenRLHF's `ckpt.path`."""
    tag: str
    """Its folder in `path`/_actor."""


class Refusal(Wire):
    """Why a request was not carried out."""

    detail: str
    """In words."""
