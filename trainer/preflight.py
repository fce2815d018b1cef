"""What a run is going to ask, looked at before anything is spent: is the policy that is sampled the one
whose weights are meant, and does each role's endpoint work?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..agents.evolver.preflight import look_at_evolver
from ..agents.policy import PolicyError, PromptError, Request, Sample
from ..agents.roles.client import Role
from ..agents.scoring.judge import Judge
from ..agents.scoring.preflight import Finding, look_at_endpoints, look_at_judge, look_at_oracle
from ..agents.scoring.quality import asked_oracle
from ..agents.usage import Usage
from ..specs.engines import LocalEngine
from ..specs.openrlhf import OpenrlhfEngine
from ..specs.schema import Endpoint, RunSpec
from ..specs.schema import Judge as JudgeSpec

PROMPT = "Say what a good walk is like, in a sentence or two."
SAMPLES = 4
#: Mean difference of log-probabilities (nats a token) that bf16 may make (0.05 for SmolLM2 on a CPU);
#: another model's are 0.5 and more.
TOLERANCE = 0.1


def look_at_role(name: str, endpoint: Endpoint, spec: RunSpec) -> Iterator[Finding]:
    """Is it there, and where it is, does it answer as a run would need it? Raises `KeyMissingError`."""
    role = Role(name, endpoint, Usage())
    try:
        found = list(look_at_endpoints(role))
        yield from found
        if not any(finding.ok for finding in found):
            return
        if isinstance(endpoint, JudgeSpec):
            yield from look_at_judge(Judge(role, endpoint, None))
        elif name == "oracle" and spec.oracle.asks:
            yield from look_at_oracle(asked_oracle(role, spec.oracle))
        elif name == "evolver":
            yield from look_at_evolver(role, spec)
    finally:
        role.close()


def look_at_policy(spec: RunSpec) -> Iterator[Finding]:
    """Samples some responses as the critic would, and asks the weights themselves about them."""
    engine = spec.engine
    if isinstance(engine, LocalEngine):
        yield from _local(spec, engine)
    elif isinstance(engine, OpenrlhfEngine):
        yield from _served(spec, engine)


def _local(spec: RunSpec, engine: LocalEngine) -> Iterator[Finding]:
    from .local.engine import Engine
    from .local.model import PolicyNotFoundError, load, resolve

    try:
        model, tokenizer = load(resolve(spec.roles.policy.model))
    except PolicyNotFoundError as error:
        yield Finding("policy", False, str(error))
        return
    template_kwargs = spec.roles.policy.chat_template_kwargs
    policy = Engine(model, tokenizer, engine, template_kwargs=template_kwargs)
    try:
        samples = policy.sample(_requests(), spec.seed)
    except PromptError as error:
        yield Finding("policy", False, str(error))
        return
    sequences = _sequences(policy.tokenize(PROMPT), samples)
    served = _logprobs(policy.sampler, sequences)
    yield _compared("the sampler", served, _logprobs(policy.model, sequences))


def _served(spec: RunSpec, engine: OpenrlhfEngine) -> Iterator[Finding]:
    """The frozen policy's own server, started for this and ended."""
    from .chat import Chat
    from .local.model import PolicyNotFoundError, load, resolve
    from .openrlhf.frozen import FrozenPolicy

    try:
        folder = resolve(spec.roles.policy.model)
        model, tokenizer = load(folder)
    except PolicyNotFoundError as error:
        yield Finding("policy", False, str(error))
        return
    chat = Chat(tokenizer, engine.max_prompt_tokens, spec.roles.policy.chat_template_kwargs)
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "server.log"
        policy = FrozenPolicy(engine, folder, chat, log)
        try:
            samples = policy.sample(_requests(), spec.seed)
            sequences = _sequences(policy.chat.tokenize(PROMPT), samples)
            served = [policy.logprobs(sequence) for sequence in sequences]
        except (PolicyError, PromptError) as error:
            last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
            yield Finding("policy", False, "; ".join([str(error), *last]))
            return
        finally:
            policy.close()
    yield _compared("the frozen policy's server", served, _logprobs(model, sequences))


def _requests() -> list[Request]:
    return [Request(PROMPT, ("preflight", n)) for n in range(SAMPLES)]


def _sequences(prompt: Sequence[int], samples: Sequence[Sample]) -> list[list[int]]:
    return [[*prompt, *sample.token_ids] for sample in samples]


def _logprobs(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities (nats) of each sequence's tokens but the first, by a torch model."""
    from .local.generate import sequence_logprobs

    return [sequence_logprobs(model, sequence) for sequence in sequences]


def _compared(who: str, served: list[list[float]], weights: list[list[float]]) -> Finding:
    pairs = [
        abs(ours - theirs)
        for row, others in zip(served, weights, strict=True)
        for ours, theirs in zip(row, others, strict=True)
    ]
    distance = sum(pairs) / len(pairs)
    told = (
        f"log-probabilities of {len(pairs)} tokens are {distance:.4f} nats from the weights' on average"
    )
    return Finding(f"policy: {who}", distance <= TOLERANCE, f"{told} (at most {TOLERANCE:g})")
