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
from typing import NoReturn

from ..runfolder import RunFolder
from .served import SNAPSHOT
from .snapshot import Thread, take_snapshot

HOST = "127.0.0.1"
STUDIO = "https://smith.langchain.com/studio/"
GRAPH = "evolver"
#: What brings the server (the extra `studio` of pyproject.toml).
REQUIREMENT = "langgraph-cli[inmem]>=0.4.40,<1"

#: What is served, and to whom: only Studio's own page may read it. (By default the server lets every
#: page that is open in the browser read it.)
CONFIG = Path(__file__).parents[2] / "langgraph.json"
#: Settings of the server's vendor: with a key and tracing set there, it would report there.
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
    log: Path

    def wait(self) -> NoReturn:
        """Until the server ends by itself, which raises `ServerError`."""
        self.process.wait()
        raise _failed("ended", self.log)


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
        log = folder / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                _command(port), cwd=folder, env=_environment(folder), stdout=file, stderr=file
            )
        try:
            _wait_until_it_answers(process, port, log)
            api = f"http://{HOST}:{port}"
            _register(api, threads)
            yield Served(api, f"{STUDIO}?baseUrl={api}", threads, process, log)
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


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Raises `ServerError` if it ends instead, or takes too long."""
    until = time.monotonic() + _START_SECONDS
    while not _answers(port):
        if process.poll() is not None:
            raise _failed("ended at once", log)
        if time.monotonic() > until:
            raise _failed("took too long to start", log)
        time.sleep(0.1)


def _failed(what: str, log: Path) -> ServerError:
    last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    return ServerError(f"LangGraph's server {what}; its last words:\n{last}")


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
