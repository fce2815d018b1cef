"""The process of the frozen policy's vLLM server: how it is started, and ended with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from ...agents.policy import PolicyError
from ...specs.openrlhf import OpenrlhfEngine
from . import leash

#: Environment variable that names the Python which has vLLM, where it is not the controller's own.
PYTHON_ENV = "OPENRLHF_PYTHON"
NAME = "policy"


class PolicyServerError(PolicyError):
    """The server does not start, or does not serve the weights it should."""


class ServerProcess:
    """At most one server at a time, and none after `close`. Any thread may end it."""

    def __init__(self, engine: OpenrlhfEngine, log: Path) -> None:
        self.engine = engine
        self.log = log
        self.port = engine.serve.policy.port
        # On this machine, which no proxy has to do with.
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=600.0, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None
        self._pid_file = log.with_suffix(".pid")
        self._closed = False
        self._lock = threading.Lock()

    @property
    def is_up(self) -> bool:
        """Does it run, as far as one can see from here?"""
        process = self.process
        return process is not None and process.poll() is None

    def start(self, model: Path) -> None:
        """Start it on a model folder, unless it runs, and wait for it. Raises `PolicyServerError`."""
        with self._lock:
            if self.is_up:
                return
            if self._closed:
                raise PolicyServerError("the frozen policy's server is not started any more")
            self._end_orphan()
            with self.log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-I", leash.__file__, *server_command(self.engine, model)],
                    env=os.environ | server_environment(self.engine),
                    stdin=subprocess.PIPE,  # the leash
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # it has children of its own: they are ended with it
                )
            self.process = process
            self._pid_file.write_text(str(process.pid))
        limit = self.engine.serve.timeout
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if process.poll() is not None:
                raise PolicyServerError(f"the frozen policy's server ended at its start; see {self.log}")
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("/health", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.5)
        self.stop()
        raise PolicyServerError(
            f"the frozen policy's server was silent for engine.serve.timeout {limit:g} s; see {self.log}"
        )

    def stop(self) -> None:
        """End the server and its children: asked to at first, killed after `leash.GRACE` seconds."""
        with self._lock:
            if self.process is None:
                return
            assert self.process.stdin is not None
            self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=leash.GRACE + 2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            self._pid_file.unlink(missing_ok=True)

    def close(self) -> None:
        """End it for good."""
        self._closed = True
        self.stop()
        self.http.close()

    def _end_orphan(self) -> None:
        """A server that a killed controller has just left behind would answer in the new one's place."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if str(self.port).encode() in words and NAME.encode() in words:
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(httpx.TransportError):
            self.http.get("/health", timeout=5.0)
            raise PolicyServerError(
                f"port {self.port} of 127.0.0.1 is taken: set engine.serve.policy.port"
            )


def server_command(engine: OpenrlhfEngine, model: Path) -> list[str]:
    """The command that serves `model` for the critic."""
    server = engine.serve.policy
    flags: dict[str, Any] = {
        "model": model,
        "served-model-name": NAME,
        "host": "127.0.0.1",
        "port": server.port,
        "dtype": "bfloat16",
        "max-model-len": engine.max_prompt_tokens + engine.max_new_tokens,
        "generation-config": "vllm",  # sampled as in training, not by what the model recommends
    }
    if engine.device == "cuda":
        flags["gpu-memory-utilization"] = server.gpu_memory
        flags["tensor-parallel-size"] = len(engine.policy_gpus)
    else:
        flags["enforce-eager"] = True
        # vLLM 0.29 cannot take a seeded request's prompt in pieces on a CPU: its engine would die of it.
        flags["no-enable-chunked-prefill"] = True
        flags["max-num-batched-tokens"] = max(2048, flags["max-model-len"])
    argv = [os.environ.get(PYTHON_ENV) or sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in {**flags, **server.args}.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is not False:
            argv += [f"--{name}", str(value)]
    return argv


def server_environment(engine: OpenrlhfEngine) -> dict[str, str]:
    """What the server's environment needs besides."""
    # Reloading weights is one of vLLM's development endpoints; the server listens on loopback only.
    environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if engine.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, engine.policy_gpus))
    else:
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment |= {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    return environment
