"""Values that do not fit each other: every one is told at once, at a key that somebody wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from harnessrl.specs.loader import SpecError, load_mix, load_run_spec, load_update
from harnessrl.trainer.data.converters import CONVERTERS

TASKS = Path(__file__).resolve().parent.parent / "specs" / "tasks" / "sim.yaml"
HEAD = f"name: x\ntasks: {{files: ['{TASKS}']}}\n"  # lines 1 and 2
POLICY = "roles: {policy: {model: x}}\n"


def places(folder: Path, text: str, **options: object) -> list[str]:
    """`line:col: path` of all that is wrong with a spec."""
    (folder / "x.yaml").write_text(HEAD + text)
    with pytest.raises(SpecError) as caught:
        load_run_spec(folder / "x.yaml", **options)  # type: ignore[arg-type]
    return [f"{p.line}:{p.column}: {p.path}" for p in caught.value.problems]


def test_all_sections_at_once(tmp_path: Path) -> None:
    text = (
        f"{POLICY}oracle: {{kind: pairwise}}\n"
        "evolver: {propose: {role: evolver}, mode: async, apply_lag: 5, critic: {rollouts: 99}}\n"
        "interfaces: {g: {share: 0.3, start: [{field: skill, lines: [a]}, {field: skill, lines: [b]}]}}\n"
        "engine: {kind: local, group_size: 2}\n"
    )
    assert places(tmp_path, text) == [
        "4:16: oracle.kind",
        "5:27: evolver.propose.role",
        "5:61: evolver.apply_lag",
        "5:83: evolver.critic.rollouts",
        "6:25: interfaces.g.share",
        "6:74: interfaces.g.start[1].field",
    ]


def test_what_is_written_is_at_fault_and_not_a_default(tmp_path: Path) -> None:
    engine = "engine: {kind: local, group_size: %d}\n"
    assert places(tmp_path, POLICY + engine % 64) == ["4:35: engine.group_size"]
    rollouts = "evolver: {critic: {rollouts: 8}}\n"
    assert places(tmp_path, POLICY + engine % 16 + rollouts) == ["5:30: evolver.critic.rollouts"]
    (tmp_path / "base.yaml").write_text(rollouts)  # what the named file says comes before its base
    assert places(tmp_path, POLICY + engine % 16 + "extends: base.yaml\n") == ["4:35: engine.group_size"]
    given = {"engine": {"group_size": 64}}
    assert places(tmp_path, POLICY + engine % 8, overrides=given) == ["0:0: engine.group_size"]


SERVED = """\
roles:
  policy: {model: x}
  judge: {base_urls: ['http://127.0.0.1:8100/v1'], model: j}
  oracle: {base_urls: ['http://127.0.0.1'], model: o}
engine:
  kind: openrlhf
  nodes: 2
  micro_batch: 5
  controller: {host: "::"}
  serve:
    judge: {gpus: [0]}
    oracle: {}
    evolver: {gpus: [3]}
"""


def test_a_layout(tmp_path: Path) -> None:
    assert places(tmp_path, SERVED) == [
        "5:11: roles.judge.base_urls",
        "6:12: roles.oracle.base_urls",
        "9:10: engine.nodes",
        "10:16: engine.micro_batch",
        "11:22: engine.controller.host",
        "13:13: engine.serve.judge.gpus",
        "14:13: engine.serve.oracle.gpus",
        "15:5: engine.serve.evolver",
    ]
    cpu = "engine: {kind: openrlhf, device: cpu, nodes: 2, gpus_per_node: 2, cluster: 'http://a:1'}\n"
    assert places(tmp_path, POLICY + cpu) == [
        "4:46: engine.nodes",
        "4:64: engine.gpus_per_node",
        "4:76: engine.cluster",
    ]


def test_a_mix(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text(
        "name: m\nsources:\n"
        "  a: {converter: ifeval, places: [{kind: local, files: [a]}]}\n"
        "  b: {converter: ifevil, places: [{kind: local, files: [b]}]}\n"
        "domains: {d: {train: 1, sources: {aa: 1}}}\n"
        "ood: {o: {source: c, domain: d, tasks: 1}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_mix(path, CONVERTERS)
    assert [(p.line, p.column, p.path) for p in caught.value.problems] == [
        (4, 18, "sources.b.converter"),
        (5, 39, "domains.d.sources.aa"),
        (6, 19, "ood.o.source"),
    ]
    assert "did you mean ifeval?" in str(caught.value) and "did you mean a?" in str(caught.value)


def test_an_update_that_names_a_criterion_twice(tmp_path: Path) -> None:
    path = tmp_path / "u.yaml"
    path.write_text(
        "update:\n  op: merge\n  task_ids: [a]\n  rationale: r\n  criterion_ids: [c, d, c]\n"
        "  criterion: {text: t, points: 1}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_update(path)
    assert str(caught.value) == f"{path}:5:25: update.criterion_ids[2]: c: is named twice"
