"""`python -m harnessrl.trainer.openrlhf.versions`: is this the environment that we were written for?

Run in OpenRLHF's, before anything is started: exits with 1, and says why, if nothing could be trained.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

#: What OpenRLHF's processes import on every node.
PACKAGES = ("harnessrl", "openrlhf", "vllm", "deepspeed", "ray")
#: The trainer's subclasses rest on the insides of this version.
OPENRLHF = "0.11.2"
#: Tried with it: other versions may do, to the second number they should agree.
TRIED = {"vllm": "0.29.0", "deepspeed": "0.19.6", "ray": "2.55.0"}


def missing() -> list[str]:
    """Packages that are not there."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def unfit() -> list[str]:
    """What has to be another version, a sentence each."""
    found = _installed("openrlhf")
    if found is None or _release(found) == _release(OPENRLHF):
        return []
    return [f"openrlhf is {found}, and this needs {OPENRLHF}: pip install openrlhf=={OPENRLHF}"]


def untried() -> list[str]:
    """What is another version than was tried, or an unknown one, a sentence each."""
    lines = []
    for name, tried in {"openrlhf": OPENRLHF, **TRIED}.items():
        found = _installed(name)
        if found is None or _release(found)[:2] != _release(tried)[:2]:
            lines.append(f"{name} is {found or 'of an unknown version'}; it was tried with {tried}")
    return lines


def _release(version: str) -> list[str]:
    """The numbers of a version, without what a build or a repackaging adds (`+cu128`, `.post1`)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0].split(".") if found else []


def _installed(name: str) -> str | None:
    """A package's version; None if it is there without saying so, as a bare source tree is."""
    for distribution in (name, f"{name}-cpu"):  # vLLM has a build for the CPU
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def main() -> int:
    """The command; the exit code."""
    if lacks := missing():
        print(f"{sys.executable} has no package {', '.join(lacks)}", file=sys.stderr)
        return 1
    wrong = unfit()
    for line in wrong or untried():
        print(f"{sys.executable}: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
