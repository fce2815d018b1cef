"""The bash script that runs everything an OpenRLHF run needs, in order, with health checks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from ... import __version__
from ...specs.openrlhf import OpenrlhfEngine, http_url, server_address
from ...specs.schema import Endpoint, RunSpec
from ..runfolder import RunFolder
from . import leash
from .argv import WANDB_KEY_ENV, Flags, as_argv, flags, logs_to_wandb
from .wire import CONTROLLER_ENV, FINISHED, TOKEN_FILE_ENV

#: Put before everything else on PYTHONPATH where there is no GPU.
CPU_FOLDER = Path(__file__).with_name("cpu")

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


class ScriptError(Exception):
    """There can be no script for this spec and run folder; the message says why."""


@dataclass(frozen=True)
class VllmServer:
    """One `vllm` process of the script."""

    name: str
    gpus: str  # for CUDA_VISIBLE_DEVICES
    host: str
    port: int
    arguments: tuple[str, ...]  # in shell syntax, a flag with its value each
    key_env: str | None  # variable with the key that it asks its callers for

    @property
    def health(self) -> str:
        """The URL that answers once the server can serve."""
        return f"{http_url(self.host, self.port)}/health"


def launch_script(spec: RunSpec, run: RunFolder, python: str, openrlhf_python: str) -> str:
    """The script for a run whose folder exists (or will), at its absolute path.

    `python` runs the controller, `openrlhf_python` everything else (the two libraries want different
    versions of transformers). Raises `ScriptError`, or `TypeError` if the engine is another one.
    """
    engine = spec.engine
    if not isinstance(engine, OpenrlhfEngine):
        raise TypeError(f"engine.kind is {engine.kind}, not openrlhf")
    training = flags(spec, run)
    if taken := set(",@") & set(str(run.root)):
        raise ScriptError(f"{run.root}: OpenRLHF reads {' and '.join(taken)} in a file's name as its own")
    if engine.device == "cuda":
        _check_passes_ray(as_argv(training))
    servers = _servers(spec, engine, run.root)
    environment = Environment(
        # Bash has its own use for {{, {% and {#.
        variable_start_string="<<", variable_end_string=">>", block_start_string="<%",
        block_end_string="%>", comment_start_string="<#", comment_end_string="#>",
        trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters["sh"] = lambda value: _shell(str(value), run.root)
    template = files(__package__).joinpath("launch.sh.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        version=__version__,
        spec=spec,
        engine=engine,
        on_gpus=engine.device == "cuda",
        run=run,
        root=shlex.quote(str(run.root)),
        python=python,
        openrlhf_python=openrlhf_python,
        cpu_folder=CPU_FOLDER,
        policy_gpus=f" (GPU {','.join(map(str, engine.policy_gpus))})" if engine.policy_gpus else "",
        key_envs=sorted(_key_envs(spec, engine)),
        job_envs=[CONTROLLER_ENV, TOKEN_FILE_ENV, *([WANDB_KEY_ENV] if logs_to_wandb(engine) else [])],
        servers=servers,
        finished=FINISHED,
        leash=round(leash.GRACE),
        training=_lines(training, run.root),
    )


def _key_envs(spec: RunSpec, engine: OpenrlhfEngine) -> set[str]:
    """The environment variables that hold the run's secrets."""
    roles = (spec.roles.judge, spec.roles.oracle, spec.roles.evolver)
    keys = {role.api_key_env for role in roles if role}
    if logs_to_wandb(engine):
        keys.add(WANDB_KEY_ENV)
    return {name for name in (*keys, engine.controller.token_env) if name}


def _servers(spec: RunSpec, engine: OpenrlhfEngine, root: Path) -> list[VllmServer]:
    """The servers of roles. (The frozen policy's is the controller's own: it changes its weights.)"""
    servers = []
    for name, server in engine.serve.roles().items():
        role: Endpoint = getattr(spec.roles, name)
        host, port = server_address(role.base_urls)
        arguments: Flags = {
            "model": server.model or role.model,
            "served-model-name": role.model,
            "host": host,
            "port": port,
        }
        if engine.device == "cuda":
            arguments |= {
                "gpu-memory-utilization": server.gpu_memory,
                "tensor-parallel-size": len(server.gpus),
            }
        else:
            arguments |= {"dtype": "bfloat16", "enforce-eager": True}
        gpus = ",".join(map(str, server.gpus))
        lines = _lines({**arguments, **server.args}, root)
        servers.append(VllmServer(name, gpus, host, port, lines, role.api_key_env))
    return servers


def _lines(flags: Flags, root: Path) -> tuple[str, ...]:
    """Each flag with its value as a line of bash."""
    words = (as_argv({flag: value}) for flag, value in flags.items() if value is not False)
    return tuple(" ".join(_shell(word, root) for word in line) for line in words)


def _shell(word: str, root: Path) -> str:
    """A word in bash; what lies in the run folder relative to `$RUN`."""
    if word == str(root):
        return '"$RUN"'
    if word.startswith(f"{root}/"):
        return f'"$RUN"/{shlex.quote(word.removeprefix(f"{root}/"))}'
    return shlex.quote(word)


def _check_passes_ray(words: Sequence[str]) -> None:
    """`ray job submit` hands its command to a shell on the head node, and does not quote for it."""
    for word in words:
        if not _SAFE.fullmatch(word):
            raise ScriptError(
                f"{word!r} cannot be handed to Ray, whose jobs pass through a shell; letters, digits and "
                "_@%+=:,./- can (is it a folder? choose another name)"
            )
