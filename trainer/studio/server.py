"""LangGraph's local server on a snapshot of a run, in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runfolder import RunFolder
from .served import SNAPSHOT
from .snapshot import Thread, take_snapshot

HOST = "127.0.0.1"
GRAPH = "evolver"
#: What brings the server (the extra `studio` of pyproject.toml).
REQUIREMENT = "langgraph-cli[inmem]>=0.4.40,<1"

#: What is served, and to whom: only Studio's own page may read it. (By default the server lets every
#: page that is open in the browser read it.)
CONFIG = Path(__file__).parents[2] / "langgraph.json"
#: Settings of the server's vendor: with a key there, it would send what it serves away.
_VENDOR = ("LANGSMITH_", "LANGCHAIN_", "LANGGRAPH_", "LANGSERVE_")
_START_SECONDS = 120
_STOP_SECONDS = 5


class ServerError(Exception):
    """The server cannot be started, or ended by itself; the message says why."""


@dataclass(frozen=True)
class Served:
    """A server that answers, and what it shows."""

    api: str
    studio: str
    threads: Sequence[Thread]
    process: subprocess.Popen[bytes]


def check_installed() -> None:
    """Raises `ServerError` with the command that installs the server, if it is not there."""
    if not all(importlib.util.find_spec(name) for name in ("langgraph_cli", "langgraph_api")):
        raise ServerError(
            "LangGraph's local server is an extra (its licence is Elastic-2.0); install it with: "
            f"{sys.executable} -m pip install '{REQUIREMENT}'"
        )


def check_port(port: int) -> None:
    """Raises `ServerError` if somebody listens there (the server would silently take another)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ServerError(
                f"port {port} cannot be used ({error.strerror}); --port takes another"
            ) from None


@contextlib.contextmanager
def serving(run: RunFolder, port: int) -> Iterator[Served]:
    """Serve a snapshot of the run, taken now, until the block ends; nothing of it stays behind.

    Raises `SnapshotError` or `ServerError`.
    """
    check_port(port)
    with tempfile.TemporaryDirectory(prefix="harnessrl-studio-") as name:
        folder = Path(name)
        threads = take_snapshot(run, folder / "graph.sqlite")
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                _command(port), cwd=folder, env=_environment(folder), stdout=log, stderr=log
            )
        try:
            _wait(process, port, folder / "server.log")
            api = f"http://{HOST}:{port}"
            _register(api, threads)
            yield Served(api, f"https://smith.langchain.com/studio/?baseUrl={api}", threads, process)
        finally:
            _stop(process)


def _command(port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port), "--no-browser", "--no-reload"]
    return [sys.executable, "-m", "langgraph_cli", "dev", "--config", str(CONFIG), *where]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_VENDOR)}
    return kept | {
        SNAPSHOT: str(folder / "graph.sqlite"),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_NO_VERSION_CHECK": "1",
        "LANGSMITH_TRACING": "false",
    }


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server answers. Raises `ServerError` with the end of its log."""
    until = time.monotonic() + _START_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > until:
            what = "took too long to start" if process.poll() is None else "ended at once"
            last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise ServerError(f"LangGraph's server {what}:\n{last}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        try:
            connection.request("GET", "/ok")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def _register(api: str, threads: Sequence[Thread]) -> None:
    """Tell the server which threads its saver holds; Studio lists what it was told, newest first."""
    from langgraph_sdk import get_sync_client

    with get_sync_client(url=api, api_key=None) as client:
        for thread in threads:
            client.threads.create(
                thread_id=thread.id, metadata=thread.about, graph_id=GRAPH, if_exists="do_nothing"
            )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:  # it waits for browsers that keep a connection open
        process.kill()
        process.wait()
