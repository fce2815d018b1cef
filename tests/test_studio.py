"""A run's decisions in LangGraph Studio: the copy that is served, and the real server on it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.agents.evolver.evolver import look_of, thread_id
from harnessrl.agents.evolver.graph import build_graph
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Decision, Diagnosis
from harnessrl.trainer.runfolder import RunFolder
from harnessrl.trainer.studio import server as server_module
from harnessrl.trainer.studio.server import CONFIG, REQUIREMENT
from harnessrl.trainer.studio.snapshot import Thread, take_snapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_sdk import get_sync_client

ROOT = Path(__file__).parent.parent
HAS_SERVER = all(importlib.util.find_spec(name) for name in ("langgraph_cli", "langgraph_api"))
needs_server = pytest.mark.skipif(not HAS_SERVER, reason=f"needs the extra `studio` ({REQUIREMENT})")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run of twelve steps in which the evolver accepts, rejects and finds nothing."""
    folder = tmp_path_factory.mktemp("studio")
    spec = folder / "sim.yaml"
    spec.write_text(f"extends: {ROOT / 'specs' / 'sim.yaml'}\nengine: {{steps: 12}}\n")
    done = tiny.invoke("train", spec, "--no-probe", "--folder", folder, "--name", "sim")
    assert done.exit_code == 0, done.output
    return folder / "sim"


def logged(run: Path) -> dict[str, list[Decision]]:
    """What the event log says was decided, by thread."""
    records = read_log(run / "events.jsonl")
    found: dict[str, list[Decision]] = {
        thread_id(r.step, r.task_id): [] for r in records if isinstance(r, Diagnosis)
    }
    for record in records:
        if isinstance(record, Decision):
            found[thread_id(record.step, record.task_id)].append(record)
    return found


def files(folder: Path) -> dict[str, str]:
    """Every file of a folder by the hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- the copy -------------------------------------------------------------------------------------


def test_a_snapshot_has_every_thread_and_what_became_of_it(run: Path, tmp_path: Path) -> None:
    before = files(run)
    threads = take_snapshot(RunFolder(run), tmp_path / "copy.sqlite")
    assert files(run) == before
    told = logged(run)
    assert {t.about["thread"] for t in threads} == set(told)
    assert [t.about["step"] for t in threads] == sorted(t.about["step"] for t in threads)
    for thread in threads:
        decisions = told[thread.about["thread"]]
        if decisions:
            outcome = "accepted" if decisions[-1].accepted else "rejected"
            assert thread.about["interface"] == decisions[-1].update.interface
        else:
            outcome = "no proposal"
        assert (thread.about["run"], thread.about["outcome"]) == ("sim", outcome)
    assert {t.about["outcome"] for t in threads} == {"accepted", "rejected", "no proposal"}


def test_threads_have_the_same_ids_in_every_snapshot(run: Path, tmp_path: Path) -> None:
    first, second = (take_snapshot(RunFolder(run), tmp_path / name) for name in ("1", "2"))
    assert first == second and len({t.id for t in first}) == len(first)


def test_a_snapshot_of_a_run_in_training_has_what_is_only_in_its_write_ahead_log(
    run: Path, tmp_path: Path
) -> None:
    busy = tmp_path / "busy"
    shutil.copytree(run, busy)
    with contextlib.closing(sqlite3.connect(busy / "graph.sqlite")) as writer:
        saver = SqliteSaver(writer)
        saver.setup()
        start = {"step": 12, "task_id": "late", "diagnosis": {"failure": "inversion"}}
        graph = build_graph(saver)
        graph.update_state({"configurable": {"thread_id": "step-000012-late"}}, start, as_node="retrieve")
        assert (busy / "graph.sqlite-wal").stat().st_size > 0
        before = files(busy)
        threads = take_snapshot(RunFolder(busy), tmp_path / "copy.sqlite")
        changed = {name for name, digest in files(busy).items() if before.get(name) != digest}
        assert changed <= {"graph.sqlite-shm"}  # where SQLite's readers say what they are reading
        assert len(threads) == len(logged(run)) + 1
        (late,) = [t for t in threads if t.about["task"] == "late"]
        assert late.about["outcome"] == "unfinished"


def test_a_snapshot_of_a_run_that_stopped_anywhere_can_be_taken(run: Path, tmp_path: Path) -> None:
    """Threads are cut after each of their states, the very first included."""
    name = next(name for name, decisions in logged(run).items() if len(decisions) == 2)
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    outcomes = []
    while True:
        threads = take_snapshot(RunFolder(cut), tmp_path / f"{len(outcomes)}.sqlite")
        left = [t for t in threads if t.about["thread"] == name]
        if not left:
            break
        assert (left[0].about["step"], left[0].about["task"]) == look_of(name)
        outcomes.append(left[0].about["outcome"])
        with contextlib.closing(sqlite3.connect(cut / "graph.sqlite")) as connection, connection:
            ids = "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?1"
            connection.execute(
                f"DELETE FROM checkpoints WHERE thread_id = ?1 AND checkpoint_id = ({ids})", (name,)
            )
    assert outcomes[0] in ("accepted", "rejected") and len(outcomes) > 7
    assert set(outcomes[1:]) == {"unfinished"}


# --- what the command refuses ---------------------------------------------------------------------


def test_what_is_no_run_is_bad_input(tmp_path: Path) -> None:
    done = tiny.invoke("studio", tmp_path)
    assert done.exit_code == 2 and "is not a run folder" in done.output


@needs_server
def test_a_run_without_graph_states_is_bad_input(run: Path, tmp_path: Path) -> None:
    static = tmp_path / "static"
    shutil.copytree(run, static)
    (static / "graph.sqlite").unlink()
    done = tiny.invoke("studio", static, "--port", free_port())
    assert done.exit_code == 2 and "evolver has not been at work" in done.output
    (static / "graph.sqlite").write_bytes(b"not a database" * 100)
    done = tiny.invoke("studio", static, "--port", free_port())
    assert done.exit_code == 2 and "graph.sqlite: cannot be read" in done.output


def test_without_the_extra_the_command_that_installs_it_is_told(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "langgraph_api", None)  # as Python marks what cannot be imported
    done = tiny.invoke("studio", run)
    assert done.exit_code == 1
    assert f"{sys.executable} -m pip install '{REQUIREMENT}'" in done.output


def test_what_is_told_to_be_installed_is_the_extra() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert pyproject.count(f'"{REQUIREMENT}"') == 2  # the extras `studio` and `dev`


@needs_server
def test_a_port_in_use_is_told(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tiny.invoke("studio", run, "--port", port)
    assert done.exit_code == 1 and f"port {port} cannot be used" in done.output


@needs_server
def test_a_server_that_does_not_start_is_told_with_its_log(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"dependencies": ["."], "graphs": {}}')
    monkeypatch.setattr(server_module, "CONFIG", broken)
    done = tiny.invoke("studio", run, "--port", free_port())
    assert done.exit_code == 1 and "server ended at once;" in done.output
    assert "No graphs found in config" in done.output  # the server's own words


# --- the server -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """`harnessrl studio` at work, and what its run folder was before."""

    process: subprocess.Popen[str]
    port: int
    output: list[str]
    scratch: Path  # where its temporary folder is
    before: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The command on the run, in an environment that would send what it serves to its vendor."""
    before, port, scratch = files(run), free_port(), tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        patch.setenv("LANGSMITH_API_KEY", "a-key")
        patch.setenv("LANGSMITH_TRACING", "true")
        process = tiny.start("studio", run, "--port", str(port))
        output = []
        assert process.stdout
        for line in process.stdout:
            output.append(line)
            if "Ctrl-C" in line:
                break
        assert output and "Ctrl-C" in output[-1], output
        yield Server(process, port, output, scratch, before)
    process.kill()
    process.wait()


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with get_sync_client(url=server.url, api_key=None) as client:
        yield client


def thread(client: Any, **about: Any) -> Any:
    (found,) = client.threads.search(metadata=about)
    return found


@needs_server
def test_the_addresses_are_printed(server: Server) -> None:
    told = "".join(server.output)
    assert f"https://smith.langchain.com/studio/?baseUrl={server.url}\n" in told
    assert f"API:    {server.url} " in told


@needs_server
def test_the_graph_is_the_evolvers(client: Any) -> None:
    (assistant,) = client.assistants.search()
    assert assistant["graph_id"] == "evolver"
    shown = client.assistants.get_graph(assistant["assistant_id"])
    real = build_graph().get_graph().to_json()
    assert [n["id"] for n in shown["nodes"]] == [n["id"] for n in real["nodes"]]
    assert len(shown["nodes"]) == 7

    def edges(graph: Any) -> set[tuple[str, str, bool]]:
        return {(e["source"], e["target"], e.get("conditional", False)) for e in graph["edges"]}

    assert edges(shown) == edges(real)
    schemas = client.assistants.get_schemas(assistant["assistant_id"])
    assert {"diagnosis", "candidate", "decisions"} <= set(schemas["state_schema"]["properties"])


@needs_server
def test_threads_are_found_by_what_became_of_them(client: Any, run: Path, tmp_path: Path) -> None:
    expected = take_snapshot(RunFolder(run), tmp_path / "copy.sqlite")

    def ids(threads: list[Thread]) -> set[str]:
        return {t.id for t in threads}

    def found(**about: Any) -> set[str]:
        return {t["thread_id"] for t in client.threads.search(metadata=about, limit=100)}

    assert found() == ids(expected)
    for key in ("outcome", "step", "task"):
        for value in {t.about[key] for t in expected}:
            assert found(**{key: value}) == ids([t for t in expected if t.about[key] == value])
    accepted = ids([t for t in expected if t.about["outcome"] == "accepted"])
    assert accepted and found(outcome="accepted") == accepted != ids(expected)
    newest = client.threads.search(limit=1)[0]["metadata"]
    assert newest["step"] == expected[-1].about["step"]


@needs_server
def test_the_last_states_hold_the_decisions_of_the_event_log(client: Any, run: Path) -> None:
    told = logged(run)
    assert sum(map(len, told.values())) > 5
    for name, decisions in told.items():
        state = client.threads.get_state(thread(client, thread=name)["thread_id"])
        assert state["next"] == []
        shown = state["values"].get("decisions", [])
        assert shown == [d.model_dump(mode="json") for d in decisions]
        assert state["values"]["diagnosis"]["sentence"]


@needs_server
def test_the_history_is_the_way_through_the_graph(client: Any, run: Path) -> None:
    for name, decisions in logged(run).items():
        history = client.threads.get_history(thread(client, thread=name)["thread_id"], limit=100)
        nodes = [task["name"] for state in reversed(history) for task in state["tasks"]]
        tries = [node for node in nodes if node not in ("__start__", "retrieve", "attribute")]
        assert nodes[:3] == ["__start__", "retrieve", "attribute"]
        way = ["propose", "critic", "revise"] * len(decisions)
        if decisions and (decisions[-1].accepted or decisions[-1].revision == 1):
            assert tries == way[:-1]  # the critic had the last word
        else:
            assert tries == [*way, "propose"]  # there was nothing (more) to propose
    assert any(len(decisions) == 2 for decisions in logged(run).values())


@needs_server
def test_running_and_editing_are_refused_with_the_reason(client: Any, run: Path) -> None:
    name = next(name for name, decisions in logged(run).items() if decisions)
    old = thread(client, thread=name)["thread_id"]
    state = client.threads.get_state(old)
    for where in (old, client.threads.create()["thread_id"]):
        with pytest.raises(Exception, match="inside `harnessrl train`; nothing was changed"):
            client.runs.wait(where, "evolver", input={"step": 1, "task_id": "tides"})
    with pytest.raises(Exception, match="inside `harnessrl train`; nothing was changed"):
        client.threads.update_state(old, {"revision": 7})
    assert client.threads.get_state(old) == state


@needs_server
def test_only_this_machine_and_studios_page_can_read_it(server: Server) -> None:
    with pytest.raises(OSError):  # another of this machine's addresses
        socket.create_connection(("127.0.0.2", server.port), timeout=2)

    def allowed(origin: str) -> str | None:
        request = urllib.request.Request(f"{server.url}/info", headers={"Origin": origin})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert not json.load(answer)["flags"]["langsmith"]  # the key was not handed on
            header: str | None = answer.headers["access-control-allow-origin"]
            return header

    studio = "https://smith.langchain.com"
    assert allowed(studio) == studio
    for other in ("https://example.org", "https://smith.langchain.com.example.org", "null"):
        assert allowed(other) is None


@needs_server
def test_ctrl_c_ends_it_and_the_run_is_as_it_was(server: Server, run: Path) -> None:
    (folder,) = server.scratch.iterdir()
    assert (folder / "graph.sqlite").is_file()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.url}/ok", timeout=2)
    assert not folder.exists()
    assert files(run) == server.before


@needs_server
def test_the_configuration_is_valid_to_its_tool() -> None:
    command = [sys.executable, "-m", "langgraph_cli", "validate", "--config", str(CONFIG)]
    env = os.environ | {"LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "warning" not in done.stdout + done.stderr, done.stdout + done.stderr
