"""The report: from a synthetic run folder to one page, and never more than the folder says."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from harnessrl.agents.scoring.breakdown import breakdown
from harnessrl.memory.events import EventLog
from harnessrl.memory.records import (
    Accepted,
    AnyRecord,
    Decision,
    Diagnosis,
    Group,
    Measurement,
    NoProposal,
    Probe,
    RefusedProposal,
    Resumed,
    RunFinished,
    RunStarted,
    StepSummary,
)
from harnessrl.specs.printable import neutralise
from harnessrl.specs.schema import LocalEngine, Oracle, PolicyRole, Roles, RunSpec, Tasks
from harnessrl.specs.tasks import Criterion, HeldOutTask, TaskFile, TrainTask
from harnessrl.specs.updates import Add, Mount, Pause, Retire, Update
from harnessrl.trainer.report import build, diagnosis
from harnessrl.trainer.report import rollouts as rollouts_module
from harnessrl.trainer.report.build import build_report
from harnessrl.trainer.report.data import load_run
from harnessrl.trainer.report.text import number, signed

HOSTILE = (
    "<script>alert(1)</script></svg></details><img src=x onerror=alert(2)> \u202eevil\u0007 \x1b[31m"
)
G = 8


def seed_task(name: str, domain: str) -> dict[str, Any]:
    rubric = [
        {"text": f"Mentions {name}.", "points": 2.0},
        {"text": "Is written in full sentences.", "points": 1.0},
        {"text": "Repeats itself.", "points": -1.0},
    ]
    prompt = f"Explain {name} to a patient & give <b>one</b> example."
    return {"id": name, "domain": domain, "prompt": prompt, "rubric": rubric}


TASKS = TaskFile(
    train=tuple(
        TrainTask.model_validate(seed_task(name, domain))
        for name, domain in (
            ("med-water", "medicine"),
            ("med-sleep", "medicine"),
            ("sci-tides", "science"),
            ("sci-rust", "science"),
            ("write-haiku", "writing"),
            ("write-letter", "writing"),
        )
    ),
    held_out=tuple(HeldOutTask.model_validate(seed_task(f"held-{i}", "medicine")) for i in range(3)),
)
SPEC = RunSpec(
    name="tiny",
    seed=7,
    tasks=Tasks(files=("tasks.yaml",)),
    roles=Roles(policy=PolicyRole(model="smollm2-wheel")),
    engine=LocalEngine(kind="local", steps=28),
)
NEW = Criterion(text=f"Stays on topic {HOSTILE}", points=2.0)
WEAK = TASKS.train[0].rubric[1]
CHECKLIST = ("Name the organ.", "Give one number with its unit.")


def measurement(before: float, after: float, p: float, rollouts: int = 32) -> Measurement:
    gain = after - before
    return Measurement(
        before=before,
        after=after,
        gain=gain,
        interval=(gain - 0.137, gain + 0.129),
        p_no_gain=p,
        alpha=0.05,
        margin=0.05,
        rollouts=rollouts,
        guards={"quality_agreement": (0.611, 0.702)},
    )


def proposals() -> list[tuple[int, str, Update, bool, Measurement | None, str]]:
    """(step, failure, update, accepted, measured, reason) of the synthetic run."""
    why = "the class says so"

    def task(name: str) -> tuple[str]:
        return (name,)

    water, tides = task("med-water"), task("sci-tides")
    add = Add(task_ids=water, rationale=why, criterion=NEW, expected=0.2)
    mount = Mount(task_ids=tides, rationale=why, lines=CHECKLIST, share=0.5)
    retire = Retire(task_ids=water, rationale=why, criterion_id=WEAK.id)
    pause = Pause(task_ids=task("write-haiku"), rationale=why)
    gain = "gain above the margin"
    return [
        (3, "spurious", add, False, measurement(0.311, 0.322, 0.41), f"no gain {HOSTILE}"),
        (5, "spurious", add, True, measurement(0.315, 0.537, 0.012, 64), gain),
        (9, "blind_low", mount, True, measurement(0.083, 0.457, 0.003), gain),
        (13, "blind_mid", retire, True, measurement(0.421, 0.603, 0.021), gain),
        (17, "blind_high", pause, False, None, "tried before at this task"),
    ]


def write_run(
    run: Path,
    steps: int = 28,
    *,
    oracle: bool = True,
    evolve: bool = True,
    finished: bool = True,
    quality_after: float = 0.437,
) -> list[AnyRecord]:
    """A run folder in the formats of memory/; returns the records of its log."""
    rng = random.Random(1)
    run.mkdir(parents=True)
    spec = SPEC if oracle else SPEC.model_copy(update={"oracle": Oracle(kind="none")})
    (run / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    (run / "tasks.yaml").write_text(yaml.safe_dump(TASKS.model_dump(mode="json")))
    provenance = {"harnessrl": "0.1.0", "git": "abc123", "machine": HOSTILE}
    (run / "provenance.json").write_text(json.dumps(provenance))
    (run / "rollouts").mkdir()

    ids = [task.id for task in TASKS.train]
    recipe = "harnessrl" if evolve else "grpo"
    log: list[AnyRecord] = [
        RunStarted(id="run", step=0, harness_version=0, name="tiny", seed=7, recipe=recipe, task_ids=ids),
        probe("before", "train", 0.412, 0.512 if oracle else None),
        probe("before", "held_out", 0.401, 0.498 if oracle else None),
    ]
    metrics: list[dict[str, Any]] = []
    version = 0
    plan = proposals() if evolve else []
    for step in range(steps):
        pairs: Counter[str] = Counter()
        rewards: list[float] = []
        for slot in range(4):
            task = TASKS.train[(step * 3 + slot * 2 + (slot == 3)) % 6]
            group = rollout_group(run, rng, step, slot, task, version, oracle)
            log.append(group)
            pairs.update(group.pairs)
            rewards += [reward for reward in group.rewards if reward is not None]
        line = metrics_line(rng, step, version, pairs, rewards, oracle)
        log.append(StepSummary(id=f"step-{step}", step=step, harness_version=version, metrics=line))
        seconds = {"rollout": 2.0, "score": 0.5, "train": 1.5, "evolve": 3.0, "save": 0.25}
        metrics.append({**line, "seconds": seconds})
        for index, (at, failure, update, accepted, measured, reason) in enumerate(plan):
            if at != step:
                continue
            version += accepted
            log += decision(index, step, version, failure, update, accepted, measured, reason)
        if step == 20 and evolve:
            log.append(
                NoProposal(
                    id="none-1",
                    step=step,
                    harness_version=version,
                    diagnosis_id="diagnosis-0",
                    task_id="med-sleep",
                    reason="the catalogue is exhausted",
                )
            )
            log.append(
                RefusedProposal(
                    id="refused-1",
                    step=step,
                    harness_version=version,
                    diagnosis_id="diagnosis-0",
                    task_id="med-sleep",
                    revision=1,
                    proposed="<b>Pay for everything!</b>",
                    reason="not a proposal",
                )
            )
    if finished:
        log += [
            probe("after", "train", 0.587, quality_after if oracle else None),
            probe("after", "held_out", 0.402, 0.499 if oracle else None),
            RunFinished(id="end", step=steps, harness_version=version, **TOTALS),
        ]
    EventLog(run / "events.jsonl").append(log)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return log


TOTALS = {
    "rollouts": {"train": 896, "critic": 640, "probe": 768},
    "tokens": {"train": 20_111, "critic": 15_222, "probe": 18_333},
    "judge_calls": {"train": 2_688, "critic": 1_920, "probe": 2_304},
}


def probe(when: Any, split: Any, reward: float, quality: float | None) -> Probe:
    tasks = TASKS.train if split == "train" else TASKS.held_out
    offsets = [(i - (len(tasks) - 1) / 2) * 0.01 for i in range(len(tasks))]
    if when == "after":
        offsets = offsets[::-1]
    return Probe(
        id=f"probe-{when}-{split}",
        step=0 if when == "before" else 28,
        harness_version=0,
        when=when,
        split=split,
        samples=8,
        reward=reward,
        quality=quality,
        per_task={
            task.id: (reward + d, None if quality is None else quality + d)
            for task, d in zip(tasks, offsets, strict=True)
        },
        words=21.0 if when == "before" else 34.5,
        seconds=12.5,
    )


def decision(
    index: int,
    step: int,
    version: int,
    failure: str,
    update: Update,
    accepted: bool,
    measured: Measurement | None,
    reason: str,
) -> list[AnyRecord]:
    common = {"step": step, "harness_version": version}
    diagnosis = Diagnosis(
        id=f"diagnosis-{index}",
        **common,
        task_id=update.task_ids[0],
        domain="medicine",
        failure=failure,
        interfaces=[update.interface],
        signal_rate=0.3,
        interval=(0.1, 0.5),
        pairs={"informative": 10},
        evidence=[],
        sentence=f"Pairs of {update.task_ids[0]} tie, says <i>the record</i>.",
    )
    made = Decision(
        id=f"decision-{index}",
        **common,
        diagnosis_id=diagnosis.id,
        task_id=update.task_ids[0],
        revision=index == 1,
        update=update,
        accepted=accepted,
        reason=reason,
        measured=measured,
        retrieved=[],
    )
    if not accepted:
        return [diagnosis, made]
    new = Accepted(id=f"version-{version}", **common, decision_ids=[made.id], updates=[update])
    return [diagnosis, made, new]


def rollout_group(
    run: Path,
    rng: random.Random,
    step: int,
    slot: int,
    task: TrainTask,
    version: int,
    oracle: bool,
) -> Group:
    criteria = [*task.rubric]
    if task.id == "med-water" and version >= 1:
        criteria.append(NEW)
    guided = [task.id == "sci-tides" and version >= 2 and i < 4 for i in range(G)]
    met: dict[str, list[bool | None]] = {
        c.id: [rng.choice((True, False, False, None)) for _ in range(G)] for c in criteria
    }
    rewards = [round(0.25 + 0.01 * step + rng.uniform(-0.2, 0.2), 3) for _ in range(G)]
    quality = [round(rng.uniform(0.3, 0.6), 3) if oracle else None for _ in range(G)]
    rows = [
        {
            "step": step,
            "slot": slot,
            "sample": i,
            "task_id": task.id,
            "harness_version": version,
            "guided": guided[i],
            "guidance": list(CHECKLIST) if guided[i] else [],
            "gave_away": guided[i] and i == 2,
            "response": f"Answer {i} about {task.id} at {step}. " + (HOSTILE if i == 2 else ""),
            "tokens": 18 + i,
            "finished": i != 3,
            "reward": rewards[i],
            "advantage": 0.1,
            "quality": quality[i],
            "verdicts": {key: verdicts[i] for key, verdicts in met.items()},
        }
        for i in range(G)
    ]
    with (run / f"rollouts/step-{step:06d}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    informative = 10 + step // 2
    rest = {"spurious": 3, "inversion": 2, "blind_low": 4, "blind_mid": 1, "blind_high": 2}
    scored = {"informative": informative, **rest, "blind_spread": 1, "neutral": 1}
    known = scored if oracle else {}
    return Group(
        id=f"group-{step}-{slot}",
        step=step,
        harness_version=version,
        slot=slot,
        task_id=task.id,
        domain=task.domain,
        rewards=list(rewards),
        quality=list(quality),
        guided=guided,
        met=met,
        collapse="collapsed-low" if (step + slot) % 7 == 0 else "spread",
        pairs={**known, "unknown": 28 - sum(known.values())},  # type: ignore[dict-item]
    )


def metrics_line(
    rng: random.Random,
    step: int,
    version: int,
    pairs: Counter[str],
    rewards: list[float],
    oracle: bool,
) -> dict[str, Any]:
    signal = 0.35 + 0.01 * step + rng.uniform(-0.05, 0.05) if oracle else None
    return {
        "step": step,
        "harness_version": version,
        "reward_mean": sum(rewards) / len(rewards),
        "quality_mean": 0.5 - 0.004 * step + rng.uniform(-0.05, 0.05) if oracle else None,
        "signal_rate": signal,
        "signal_low": None if signal is None else signal - 0.1,
        "signal_high": None if signal is None else signal + 0.1,
        "zero_std_share": rng.choice((0.0, 0.25, 0.5)),
        "unscored_share": 0.01,
        "pairs": dict(pairs),
        "collapse": {"spread": 3, "collapsed-low": 1},
        "effective_tasks": 6.0 - 0.1 * version,
        "criteria_active": 18 + (version >= 1) - (version >= 3),
        "guided_tasks": int(version >= 2),
        "paused_tasks": 0,
        "rollouts": {"train": 32 * (step + 1), "critic": 4 * step, "probe": 72},
        "tokens": {"train": 1000 * (step + 1), "critic": 90 * step, "probe": 1234},
        "judge_calls": {"train": 96 * (step + 1)},
    }


class Page(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    write_run(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(build_report(run))


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Painting takes most of the time; tests of the text do without."""
    monkeypatch.setattr(build, "_figures", lambda *_: {})


def test_numbers_on_the_page_are_those_of_the_records(page: Page) -> None:
    assert "0.412 0.587 +0.175" in page.text  # train probe, reward
    assert "0.512 0.437 −0.075" in page.text  # and quality  # noqa: RUF001
    assert "critic 640" in page.text and "train 896" in page.text and "20,111" in page.text
    assert "signal rate 0.315 → 0.537" in page.text
    assert "gain +0.222 [0.085, 0.351], margin 0.050 (proposer expected +0.200)" in page.text
    assert "p(no gain) 0.012 ≤ alpha 0.050" in page.text
    assert "p(no gain) 0.410 > alpha 0.050" in page.text
    assert "guard quality agreement (before → after): 0.611 → 0.702" in page.text
    assert "guard quality agreement (plain → guided): 0.611 → 0.702" in page.text
    assert "on 64 fresh rollouts" in page.text
    assert "accepted 3 of 5 proposed updates (p 0 of 1, g 1 of 1, c 2 of 3)" in page.text
    assert "1 min 52 s" in page.text  # RL loop: 28 steps of 4 s
    assert "1 min 24 s" in page.text  # evolver: 28 steps of 3 s


def test_the_summary_says_that_quality_fell(page: Page) -> None:
    assert "quality fell from 0.512 to 0.437" in page.text
    assert "more reward, but worse responses" in page.text
    assert "The run finished: 28 of 28 planned steps" in page.text
    assert "inside the spread over tasks" in page.text  # held-out: +0.001


def test_decisions_show_both_outcomes_and_missing_proposals(page: Page) -> None:
    assert page.raw.count('<span class="outcome">✓ accepted</span>') == 3
    assert page.raw.count('<span class="outcome">✗ rejected</span>') == 2
    assert "– no proposal the catalogue is exhausted" in page.text  # noqa: RUF001
    assert "<b>Pay for everything!</b> – ✗ refused not a proposal" in page.text  # noqa: RUF001
    assert "not measured" in page.text and "tried before at this task" in page.text
    assert f"c retire '{WEAK.text}' (med-water)" in page.text
    assert "revision 1" in page.text
    assert "Pairs of med-water tie, says <i>the record</i>." in page.text


def test_the_task_with_most_accepted_updates_comes_first(run: Path, page: Page) -> None:
    first = page.raw[page.raw.index('id="task-1"') : page.raw.index('id="task-2"')]
    assert "<h3>med-water" in first
    assert "✓ harness v1, from step 6" in first and "✓ harness v3, from step 14" in first
    assert "✗ rejected at step 3" in first
    # Before v1 three seed criteria; then one more; after v3 one less.
    rubrics = first.split("<h5>Rubric at this visit")[1:]
    sizes = [part.split("</ul>")[0].count('<span class="points">') for part in rubrics]
    versions = [int(part.split("(harness version ")[1].split(")")[0]) for part in rubrics]
    assert all(n == {0: 3, 1: 4, 2: 4, 3: 3}[v] for n, v in zip(sizes, versions, strict=True))
    # The change stands before the first visit that it acted on.
    change = first.index("✓ harness v1")
    steps = [int(part.split("</span>")[0]) for part in first[:change].split('cell">step ')[1:]]
    assert steps and max(steps) < 6


def test_unscored_is_not_shown_as_not_met(page: Page) -> None:
    verdicts = Counter(value for value in page.values("class") if value.startswith("verdict "))
    assert verdicts["verdict unscored"] > 100
    assert page.raw.count("? unscored</span>") == verdicts["verdict unscored"]
    assert page.raw.count("✗ not met</span>") < verdicts["verdict bad"] + verdicts["verdict good"]


def test_hostile_text_stays_text(page: Page) -> None:
    assert not page.tags.keys() & {"script", "img", "iframe", "object", "embed", "link", "i", "b"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags["svg"] == 4 and page.raw.count("</svg>") == 4
    assert "<script>alert(1)</script></svg>" in page.text
    assert not set(page.raw) & {"\u202e", "\x07", "\x1b"}
    assert "⟨U+202E⟩evil⟨U+0007⟩ ⟨U+001B⟩[31m" in page.text


def test_the_page_needs_nothing_from_outside(page: Page) -> None:
    assert all(value.startswith("#") for value in page.values("href") + page.values("xlink:href"))
    assert not page.values("src")
    assert "@import" not in page.raw
    assert page.raw.count("url(") == page.raw.count("url(#")


def test_ids_are_unique_and_every_reference_has_its_target(page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = {v[1:] for v in page.values("href") + page.values("xlink:href")}
    references |= {part.split(")")[0] for part in page.raw.split("url(#")[1:]}
    assert references <= set(ids)


def test_the_same_folder_gives_the_same_bytes(run: Path, page: Page) -> None:
    first = (run / "report.html").read_bytes()
    assert build_report(run).read_bytes() == first
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_without_an_oracle_it_says_that_it_cannot_judge(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=6, oracle=False)
    page = Page(build_report(tmp_path / "run"))
    assert "whether more reward meant better responses cannot be judged" in page.text
    assert "oracle quality is not known" in page.text
    assert "oracle quality rose" not in page.text and "oracle quality fell" not in page.text


def tables(page: Page) -> list[list[list[str]]]:
    """The cells of the body rows of the diagnosis' tables: domains, then criteria."""
    section = page.raw[page.raw.index('id="diagnosis"') :].split("</section>")[0]
    bodies = section.split("<tbody>")[1:]
    rows = [body.split("</tbody>")[0].split("<tr>")[1:] for body in bodies]
    cells = [[re.split(r"</t[hd]>", row)[:-1] for row in body] for body in rows]
    return [
        [[" ".join(re.sub("<[^>]*>", " ", c).split()) for c in row] for row in body] for body in cells
    ]


def test_the_diagnosis_is_that_of_the_log(run: Path, page: Page) -> None:
    groups = load_run(run).of(Group)
    domains, criteria = tables(page)
    expected = breakdown(groups, "domain", {}, SPEC.seed)
    for cells, row in zip(domains, expected, strict=True):
        assert cells[0].startswith(row.key) and "2 tasks" in cells[0]
        assert cells[1].startswith(f"{row.signal_rate:.2f} [")
        assert cells[2] == str(row.groups) and cells[4] == f"{row.known:,}"
        assert cells[5] == f"{row.share('informative'):.0%}"
    texts = " ".join(row[0] for row in criteria)
    # That of the seed rubrics and the one that was accepted; less the retired one where it was retired.
    assert "Stays on topic" in texts and "Mentions sci-rust." in texts and "Repeats itself." in texts
    rates = [float(row[1].split()[0]) for row in criteria]
    assert rates == sorted(rates) and len(rates) == 6 + 2 + 1
    full = next(row for row in criteria if "full sentences" in row[0])
    assert full[0].startswith("+1") and full[0].endswith("6 tasks") and full[2] == "112"


def test_a_long_rubric_is_cut_to_its_worst_criteria(
    run: Path, monkeypatch: pytest.MonkeyPatch, without_figures: None
) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ROWS", 4)
    page = Page(build_report(run))
    assert len(tables(page)[1]) == 4 and "5 more, with higher rates" in page.text
    monkeypatch.undo()
    build_report(run)


@pytest.mark.usefixtures("without_figures")
def test_without_an_oracle_the_diagnosis_tells_collapse_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=6, oracle=False)
    page = Page(build_report(tmp_path / "run"))
    assert "The oracle was asked about none of the 24 groups" in page.text
    for row in [row for body in tables(page) for row in body]:
        assert row[1] == row[5] == "–" and row[4] == "0"  # noqa: RUF001
        assert re.fullmatch(r"\d+/\d+/\d+", row[3])


@pytest.mark.usefixtures("without_figures")
def test_a_run_that_never_evolves(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=4, evolve=False)
    page = Page(build_report(tmp_path / "run"))
    assert "No update of the harness was proposed." in page.text
    assert "Nothing was proposed: the harness did not change." in page.text
    assert "Recipe grpo" in page.text


@pytest.mark.parametrize("steps", [0, 1])
def test_an_interrupted_run(tmp_path: Path, steps: int) -> None:
    write_run(tmp_path / "run", steps=steps, finished=False)
    page = Page(build_report(tmp_path / "run"))
    assert "not finished (interrupted, or still running)" in page.text
    assert f"The run is not finished: {steps} of 28 planned steps are done" in page.text
    assert "no probe from both before and after" in page.text
    assert ("nothing to plot" in page.text) == (steps == 0)


def test_an_empty_folder_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    page = Page(build_report(tmp_path / "empty"))
    assert "There is no events.jsonl" in page.text and "There is no spec.yaml." in page.text
    with pytest.raises(FileNotFoundError, match="no run folder"):
        build_report(tmp_path / "missing")


@pytest.mark.usefixtures("without_figures")
def test_damaged_parts_are_named_and_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, steps=5, finished=False)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"type":"group","id":"half')
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:40], *lines[2:], '{"st']))
    (run / "rollouts/step-000001.jsonl").unlink()
    (run / "rollouts/step-000002.jsonl").write_text("not json\n")
    (run / "tasks.yaml").write_text("train: [")
    (run / "provenance.json").write_text("{")
    page = Page(build_report(run))
    assert "metrics.jsonl:2 cannot be read" in page.text
    assert "tasks.yaml cannot be used" in page.text
    assert "provenance.json cannot be read" in page.text
    assert "rollouts/step-000001.jsonl , slot 0" in page.text
    assert "Answer 0 about" in page.text  # the other steps' rollouts


@pytest.mark.usefixtures("without_figures")
def test_a_resumed_run_counts_no_voided_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    log = write_run(run, steps=8, finished=False)
    redone = [record for record in log if record.step == 3 and isinstance(record, StepSummary)]
    resumed = Resumed(id="resumed", step=3, harness_version=0)
    EventLog(run / "events.jsonl").append([resumed, *redone])
    data = load_run(run)
    assert [step.step for step in data.steps] == [0, 1, 2, 3]
    page = Page(build_report(run))
    assert "resumed 1 time;" in page.text
    assert "4 of 28 planned steps" in page.text
    assert "harness is at version 0" in page.text


@pytest.mark.usefixtures("without_figures")
def test_rollouts_over_the_budget_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", steps=6)
    monkeypatch.setattr(rollouts_module, "OTHERS_BUDGET", 60_000)
    page = Page(build_report(tmp_path / "run"))
    assert "older visits are left out; they are in rollouts/" in page.text
    assert "Not on this page; see rollouts/step-" in page.text


def test_text_helpers() -> None:
    assert neutralise("plain\ttext\n") == "plain\ttext\n"
    assert neutralise("a\ud800b\u2066c\u2028") == "a⟨U+D800⟩b⟨U+2066⟩c⟨U+2028⟩"
    assert neutralise("naïve 日本 👩\u200d🔬") == "naïve 日本 👩\u200d🔬"
    assert number(None) == number(float("nan")) == "–"  # noqa: RUF001
    assert number(-0.0001) == "0.000" and signed(-0.5) == "−0.500"  # noqa: RUF001
    assert signed(0.0001) == "0.000" and signed(0.25) == "+0.250"
