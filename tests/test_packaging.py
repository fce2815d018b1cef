"""What is shipped, and which way imports run."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: A folder may import from itself and from what stands before it.
ORDER = ("specs", "prompts", "memory", "agents", "trainer")
PURE = ("harnessrl.agents.scoring.breakdown", "harnessrl.agents.scoring.diagnosis")
#: What OpenRLHF's processes import, in their own environment.
SIDE = "harnessrl.trainer.openrlhf."
OPENRLHF_SIDE = [f"{SIDE}{name}" for name in ("client", "executor", "train_ppo", "wire", "worker")]
#: Stands first on their path where there is no GPU: files, and no part of the package.
CPU = ROOT / "trainer" / "openrlhf" / "cpu"
NOT_SHIPPED = {"tests", "benchmarks", "build", "dist", "runs"}
DATA = (".yaml", ".md", ".json", ".html", ".css", ".jinja", ".typed")


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def shipped_folders() -> list[Path]:
    """Folders of the package: the root, and those under it that hold an __init__.py."""
    found = [ROOT]
    for top in sorted(ROOT.iterdir()):
        if top.is_dir() and top.name not in NOT_SHIPPED and not top.name.startswith((".", "_")):
            found += sorted(init.parent for init in top.rglob("__init__.py"))
    return [folder for folder in found if CPU not in folder.parents]


def dotted(path: Path) -> str:
    return ".".join(("harnessrl", *path.relative_to(ROOT).parts))


# --- imports --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported module; `at_start` when importing the importer runs it."""

    module: str
    at_start: bool


def modules() -> dict[str, Path]:
    """Every module of the package and its file."""
    found = {}
    for folder in shipped_folders():
        for file in folder.glob("*.py"):
            name = dotted(folder) if file.stem == "__init__" else f"{dotted(folder)}.{file.stem}"
            found[name] = file
    return found


MODULES = modules()


def imports(name: str) -> list[Import]:
    """What a module imports, type-checking imports included, as absolute module names."""
    file = MODULES[name]
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    return list(_in_body(ast.parse(file.read_text()), package, at_start=True))


def _in_body(node: ast.AST, package: str, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, at_start) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in child.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in MODULES else base, at_start)
        else:
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _in_body(child, package, at_start and not lazy and not typing_only)


def own(name: str) -> list[Import]:
    return [i for i in imports(name) if i.module.split(".")[0] == "harnessrl"]


def folder_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_the_parser_sees_imports() -> None:
    assert Import("harnessrl.specs.schema", True) in imports("harnessrl.agents.evolver.graph")
    assert Import("harnessrl.trainer.train", False) in imports("harnessrl.trainer.cli.training")
    assert Import("harnessrl", True) in imports("harnessrl.trainer.cli.app")
    assert len(MODULES) > 40


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name: str) -> None:
    allowed = ORDER[: ORDER.index(folder_of(name)) + 1] if folder_of(name) else ()
    for imported in own(name):
        assert imported.module in MODULES, f"{name} imports {imported.module}, which is not shipped"
        assert folder_of(imported.module) in (*allowed, ""), f"{name} imports {imported.module}"


def test_no_import_cycles() -> None:
    graph = {name: {i.module for i in own(name) if i.at_start} - {name} for name in MODULES}
    for name in MODULES:  # importing a.b imports a first
        graph[name] |= {parent for parent in _parents(name) if parent != name}
        graph[name] -= {m for m in graph[name] if m.startswith(f"{name}.")}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts)))


def test_scoring_does_not_know_the_evolver() -> None:
    for name in MODULES:
        if name.startswith("harnessrl.agents.scoring"):
            assert not [i for i in own(name) if ".evolver" in i.module], name


def test_only_the_engine_layer_knows_torch() -> None:
    """The brain runs without torch: only trainer/local does tensor work.

    (trainer/tensorboard borrows torch's writer; it holds no tensor. What runs inside OpenRLHF is another
    engine's, and the service's tokenizer only checks prompts.)
    """
    for name in MODULES:
        if not name.startswith("harnessrl.trainer.local") and name not in OPENRLHF_SIDE:
            bad = [
                i.module
                for i in imports(name)
                if i.module.split(".")[0] in ("torch", "transformers")
                and i.module != "torch.utils.tensorboard"
                and name != "harnessrl.trainer.openrlhf.serve"
            ]
            assert not bad, f"{name} imports {bad}"


def test_the_report_reads_run_folders_only() -> None:
    """... and never live objects. What it counts with are pure functions of records."""
    for name in MODULES:
        if name.startswith("harnessrl.trainer.report"):
            for imported in own(name):
                assert imported.module.startswith(
                    ("harnessrl.trainer.report", "harnessrl.memory", "harnessrl.specs", *PURE)
                ), f"{name} imports {imported.module}"


def test_openrlhfs_side_needs_nothing_of_the_brain() -> None:
    """It is installed without the package's dependencies, beside other versions of some of them."""
    for name in OPENRLHF_SIDE:
        for imported in own(name):
            assert imported.module in (*OPENRLHF_SIDE, "harnessrl.trainer.openrlhf"), name
    for name in ("harnessrl", "harnessrl.trainer", "harnessrl.trainer.openrlhf"):
        assert not imports(name) or name == "harnessrl", f"{name} is imported there, and imports"


def test_held_out_tasks_are_unknown_to_whatever_evolves() -> None:
    for name, file in MODULES.items():
        if folder_of(name) in ("memory", "agents") or name.endswith((".sampling", ".harness")):
            words = {n.id for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Name)}
            assert "HeldOutTask" not in words, name


def test_inside_the_package_imports_are_relative() -> None:
    for name, file in MODULES.items():
        if name == f"{SIDE}executor":
            continue  # OpenRLHF loads it by its path, so that it knows no package
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] != "harnessrl", f"{name}:{node.lineno}"


def test_third_party_imports_are_declared() -> None:
    """Each import belongs to a declared dependency, or to what one of those requires itself."""
    declared = {_name(d) for d in project()["project"]["dependencies"]}  # type: ignore[index]
    near = set(declared)
    for dist in declared:
        near |= {_name(r) for r in importlib.metadata.requires(dist) or () if "extra ==" not in r}
    owners = importlib.metadata.packages_distributions()
    for name in MODULES:
        for imported in imports(name):
            top = imported.module.split(".")[0]
            if top in sys.stdlib_module_names or top == "harnessrl":
                continue
            if name in OPENRLHF_SIDE and top in ("openrlhf", "ray", "vllm"):
                continue  # the extra `gpu`
            dists = {_name(d) for d in owners.get(top, [])}
            assert dists & near, f"{name} imports {top}, which no dependency in pyproject.toml brings"


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


# --- the wheel ------------------------------------------------------------------------------------


def test_every_package_is_listed() -> None:
    listed = project()["tool"]["setuptools"]["packages"]  # type: ignore[index]
    assert sorted(listed) == sorted(dotted(folder) for folder in shipped_folders())
    assert len(set(listed)) == len(listed)


def copy_checkout(target: Path) -> Path:
    """The checkout without what is built or run in it (setuptools would reuse a stale build/)."""
    ignore = shutil.ignore_patterns(
        ".*", "build", "dist", "runs", "*.egg-info", "__pycache__", "node_modules"
    )
    shutil.copytree(ROOT, target, ignore=ignore)
    return target


def build_wheel(scratch: Path) -> Path:
    """Build the wheel from a copy of the checkout, with the setuptools that is installed here."""
    source = copy_checkout(scratch / "source")
    out = scratch / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_data_file(wheel_names: set[str]) -> None:
    expected = {ROOT / "langgraph.json"}
    for folder in shipped_folders():
        suffixes = (".py",) if folder == ROOT else (".py", *DATA)
        expected |= {f for f in folder.iterdir() if f.is_file() and f.suffix in suffixes}
    for folder in (ROOT / "specs" / "tasks", ROOT / "specs" / "recipes"):
        expected |= set(folder.glob("*.yaml"))
    expected |= {file for file in CPU.rglob("*.py") if "__pycache__" not in file.parts}
    names = {f"harnessrl/{f.relative_to(ROOT).as_posix()}" for f in expected}
    for must in ("specs/quickstart.yaml", "memory/tokenizer.json", "prompts/guidance.md"):
        assert f"harnessrl/{must}" in names
    assert not names - wheel_names, "missing in the wheel"


def test_the_wheel_holds_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert all(top == "harnessrl" or top.endswith(".dist-info") for top in tops), tops
    inside = {name.split("/")[1] for name in wheel_names if name.startswith("harnessrl/")}
    assert inside == {*ORDER, "__init__.py", "langgraph.json"}


def test_the_console_script_is_declared(wheel_names: set[str]) -> None:
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel_names)
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="harnessrl")
    assert script.value == "harnessrl.trainer.cli:main"


def test_the_readme_travels() -> None:
    assert (ROOT / str(project()["project"]["readme"])).is_file()  # type: ignore[index]


def test_ci_runs_the_fast_and_the_slow_checks() -> None:
    script = ROOT / ".ci" / "run"
    text = script.read_text()
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert "set -euo pipefail" in text
    assert text.index("make test") < text.index("make test-engines") < text.index("make slow")
