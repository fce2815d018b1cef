"""Fixtures that the tests share. Nothing here imports torch: the environment is set first."""

from __future__ import annotations

import os
import signal
import threading

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start as well;
# some of it is there to be stopped so.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported anywhere: its waiting threads would otherwise spin and starve each other,
# and no test may ask a model hub.
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a random half-million-parameter Llama."""
    return tiny.build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def small(tmp_path: Path, tiny_model: Path) -> tiny.Paths:
    """A six-step spec on the tiny model, with tasks whose pool gives the evolver work."""
    return tiny.write_spec(tmp_path / "spec", tiny_model)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tiny.Finished:
    """That spec trained to its end with both probes. Copy the run folder before changing it."""
    paths = tiny.write_spec(tmp_path_factory.mktemp("finished"), tiny_model)
    done = tiny.invoke("train", paths.spec)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return tiny.Finished(paths.spec, paths.run, done.output)


@pytest.fixture
def spec(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """Writes a spec with held-out tasks."""
    from measured import held_out

    def write(tasks: list[dict[str, Any]], **more: Any) -> Path:
        train = [{**held_out(1)[0], "id": "train-1", "prompt": "Write about training."}]
        train = more.pop("train", train)
        (tmp_path / "tasks.yaml").write_text(yaml.safe_dump({"train": train, "held_out": tasks}))
        content = {
            "name": "measured",
            "tasks": {"files": ["tasks.yaml"]},
            "engine": {"kind": "local", "max_new_tokens": 8, "threads": 1},
            "roles": {"policy": {"model": str(tiny_model)}, **more.pop("roles", {})},
            **more,
        }
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(content))
        return tmp_path / "spec.yaml"

    return write
