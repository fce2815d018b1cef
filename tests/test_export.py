"""What leaves with an exported harness: tasks of data sets without a licence do not, unless asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.specs.loader import load_harness_file, load_run_spec, load_task_file
from harnessrl.trainer import train
from harnessrl.trainer.data.load import load_tasks

SECRET = "zanzibar"  # in every text of the tasks whose source states no licence


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


def converted(name: str, domain: str, **keys: Any) -> str:
    """A row of a built mix: it has an origin, and a licence where its source states one."""
    said = SECRET if "licence" not in keys else "harbour"
    rubric = [
        {"text": f"Names the {said}.", "points": 1.0, "check": {"kind": "mentions", "terms": [said]}}
    ]
    row = {"id": name, "domain": domain, "prompt": f"Where is {said} {name}?", "rubric": rubric}
    return json.dumps({**row, "source": name.split("-")[0], "origin": {"row": name}, **keys})


def trained(folder: Path, model: Path, spec: dict[str, Any], rows: list[str]) -> Path:
    """The folder of a run of one step on `rows` and the tiny tasks, whose harness changes three tasks."""
    paths = tiny.write_spec(folder, model, steps=1)
    (folder / "rows.jsonl").write_text(tiny.join(rows))
    changed = {name: {"p": {"boost": 2.0}} for name in ("fox", "rar-1", "open-1")}
    (folder / "start.yaml").write_text(yaml.safe_dump({"tasks": changed}))
    content = yaml.safe_load(paths.spec.read_text())
    content["tasks"]["files"].append("rows.jsonl")
    for key, value in spec.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    paths.spec.write_text(yaml.safe_dump(content))
    done = tiny.invoke("train", paths.spec, "--recipe", "grpo", "--no-probe")
    assert done.exit_code == 0, done.output
    return paths.run


ROWS = [
    converted("rar-1", "medical"),
    converted("rar-2", "medical"),
    converted("rar-3", "animals", split="held_out"),
    converted("hub-1", "animals"),
    converted("open-1", "science", licence="MIT"),
    converted("open-2", "science", licence="MIT"),
]
SHARES = {"medical": 1, "science": 2, "animals": 3, "writing": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    spec = {"start": "start.yaml", "interfaces": {"p": {"domain_shares": SHARES}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_report", lambda root: root / "report.html")
        return trained(tmp_path_factory.mktemp("run"), tiny_model, spec, ROWS)


def test_tasks_without_a_licence_stay_and_the_export_loads(run: Path, tmp_path: Path) -> None:
    done = tiny.invoke("harness", "export", run, "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "left out, since their sources state no licence: tasks: 1 of hub, 3 of rar" in done.stderr
    for file in (tmp_path / "out").iterdir():
        assert SECRET not in file.read_text() and "rar-" not in file.read_text(), file
    loaded = load_run_spec(tmp_path / "out" / "spec.yaml")
    tasks = load_tasks(loaded)
    assert {*tasks.train} == {"fox", "dog", "letters", "words", "open-1", "open-2"}
    assert {*tasks.held_out} == {"quick"}
    assert tasks.train["open-1"].licence == "MIT"
    assert loaded.spec.interfaces.p.domain_shares == {"science": 2.0, "animals": 3.0, "writing": 1.0}
    assert {*load_harness_file(tmp_path / "out" / "harness.yaml").tasks} == {"fox", "open-1"}
    options = ["--folder", tmp_path / "runs", "--no-probe"]
    done = tiny.invoke("train", tmp_path / "out" / "spec.yaml", *options)
    assert done.exit_code == 0, done.output


def test_they_leave_where_that_is_asked_for(run: Path, tmp_path: Path) -> None:
    done = tiny.invoke("harness", "export", run, "--to", tmp_path / "out", "--include-unlicensed")
    assert done.exit_code == 0
    assert "state no licence: 1 of hub, 3 of rar: do not pass them on" in done.stderr
    assert load_task_file(tmp_path / "out" / "tasks.yaml") == load_task_file(run / "tasks.yaml")
    spec = load_run_spec(tmp_path / "out" / "spec.yaml")
    assert spec.spec.interfaces.p.domain_shares == SHARES
    assert {*load_tasks(spec).start.tasks} == {"fox", "rar-1", "open-1"}


def test_nothing_is_written_where_no_task_is_left_to_train_on(
    run: Path, tmp_path: Path, tiny_model: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    tasks = yaml.safe_load((copy / "tasks.yaml").read_text())
    for task in tasks["train"]:
        task.pop("licence", None)
        task["origin"] = {"row": "1"}
    (copy / "tasks.yaml").write_text(yaml.safe_dump(tasks))
    done = tiny.invoke("harness", "export", copy, "--to", tmp_path / "out")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    assert "every training task is of a data set that states no licence (1 of hub" in done.output


def test_an_evaluation_without_tasks_is_not_scheduled(tmp_path: Path, tiny_model: Path) -> None:
    """The validation tasks stay behind, and each domain has one task: none can be set apart instead."""
    rows = [converted("rar-1", "medical"), converted("rar-2", "medical")]
    spec = {"logging": {"evaluate_every": 1, "validation_samples": 1}, "tasks": {"files": ["rows.jsonl"]}}
    rows.append(converted("open-1", "science", licence="MIT"))
    run = trained(tmp_path, tiny_model, spec, rows)
    (apart, *_) = load_task_file(run / "tasks.yaml").validation
    assert apart.id.startswith("rar-")
    done = tiny.invoke("harness", "export", run, "--to", tmp_path / "out")
    assert done.exit_code == 0 and "logging.evaluate_every is 0 there" in done.stderr
    loaded = load_run_spec(tmp_path / "out" / "spec.yaml")
    assert loaded.spec.logging.evaluate_every == 0
    assert {*load_tasks(loaded).train} == {"open-1"}


NODES = ("evolver.propose", "evolver.attribute", "oracle", "roles.judge")


def test_an_export_with_templates_of_ones_own_stands_alone(tmp_path: Path, tiny_model: Path) -> None:
    """Moved elsewhere, and with nothing of the run and its spec left, it loads and starts the same."""
    home = tmp_path / "home"
    home.mkdir()
    needed = {"oracle": "{{ prompt }} {{ first }} {{ second }}"}
    needed["roles.judge"] = "{{ prompt }} {{ response }} {{ criterion }}"
    for node in NODES:
        (home / f"{node}.md").write_text(f"{node}, as I like it. {needed.get(node, '{{ prompt }}')}\n")
    spec = {
        "start": "start.yaml",
        "roles": {
            "policy": {"model": str(tiny_model)},
            "judge": {"base_urls": ["http://127.0.0.1:9/v1"], "model": "m", "prompt": "roles.judge.md"},
        },
        "oracle": {"prompt": "oracle.md"},
        "evolver": {node: {"prompt": f"evolver.{node}.md"} for node in ("propose", "attribute")},
    }
    run = trained(home, tiny_model, spec, ROWS)
    old = load_harness_file(run / "harness" / "000000.yaml")
    done = tiny.invoke("harness", "export", run, "--to", tmp_path / "out", "--include-unlicensed")
    assert done.exit_code == 0, done.output
    folder = f"roles.policy.model, {tiny_model}; elsewhere, take that folder along"
    assert f"not in {tmp_path / 'out'}: {folder}" in done.stderr
    shutil.rmtree(home)
    moved = Path(shutil.move(tmp_path / "out", tmp_path / "moved"))
    assert {p.name for p in (moved / "prompts").iterdir()} == {f"{node}.prompt.md" for node in NODES}
    done = tiny.invoke("validate", moved / "spec.yaml")
    assert done.exit_code == 0, done.output
    options = ["--recipe", "grpo", "--no-probe", "--folder", tmp_path / "again"]
    done = tiny.invoke("train", moved / "spec.yaml", *options)
    assert done.exit_code == 0, done.output
    again = tmp_path / "again" / "tiny-evolved"
    assert load_harness_file(again / "harness" / "000000.yaml") == old
    for node in NODES:
        assert (again / f"prompts/{node}.prompt.md").read_text().startswith(f"{node}, as I like it.")


def test_a_template_that_is_gone_is_said_so(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    spec = yaml.safe_load((copy / "spec.yaml").read_text())
    spec["oracle"]["prompt"] = "prompts/oracle.prompt.md"
    (copy / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = tiny.invoke("harness", "export", copy, "--to", tmp_path / "out")
    assert done.exit_code == 2 and not (tmp_path / "out").exists()
    assert "oracle.prompt: prompts/oracle.prompt.md does not exist" in done.output
