"""Fixtures that the tests share. Nothing here imports torch: the environment is set first."""

from __future__ import annotations

import os

# Before torch is imported anywhere: its waiting threads would otherwise spin and starve each other,
# and no test may ask a model hub.
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

import pytest
import tiny


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
