"""Where a run came from: versions, commit, seed, machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import __version__

PACKAGES = ("torch", "transformers", "langgraph", "chromadb", "numpy", "if-verifiable")


def provenance(seed: int, recipe: str, probe: bool) -> dict[str, Any]:
    """Flat and JSON-plain; `probe` is whether the run measures before and after training."""
    return {
        "harnessrl": __version__,
        "git_commit": _commit(),
        "seed": seed,
        "recipe": recipe,
        "probe": probe,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this package runs from; None when it is installed from a wheel."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        # A virtual environment may lie inside some other project's repository.
        return said[1] if Path(said[0]).resolve() == root else None
    except (OSError, subprocess.CalledProcessError):
        return None
