"""Training on criteria in words: whole runs on the tiny policy, with a scripted judge behind HTTP."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.agents.scoring.checks import run_check
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Accepted, Decision, Group, RunFinished
from harnessrl.specs.loader import load_run_spec, load_task_file
from harnessrl.specs.schema import Reward
from harnessrl.specs.tasks import TaskFile
from harnessrl.trainer import train
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint
from harnessrl.trainer.train import cannot_judge
from scripted_endpoint import Body, Reply, ScriptedEndpoint, asked, copying, judging
from test_controller import World
from tiny import data_file


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a report takes longer than training here."""
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    """A judge that says what the checks of the tiny tasks say."""
    with ScriptedEndpoint(judging(as_checked())) as serving:
        yield serving


def as_checked() -> Callable[[str, str], bool]:
    """What the checks of the tiny tasks say, by the criterion's text."""
    file = TaskFile.model_validate(yaml.safe_load(tiny.TASKS_YAML))
    rubrics = [task.rubric for task in (*file.train, *file.held_out)]
    checks = {c.text: c.check for rubric in [*rubrics, file.shared_pool.criteria] for c in rubric}

    def decide(response: str, criterion: str) -> bool:
        check = checks[criterion]
        assert check is not None
        return bool(run_check(check, "", response).met)

    return decide


def in_words(which: Callable[[int], bool] = lambda k: True, pool: bool = False) -> str:
    """The tiny tasks without the checks of some criteria (by their place in the rubric)."""
    file = yaml.safe_load(tiny.TASKS_YAML)
    rubrics = [task["rubric"] for task in [*file["train"], *file["held_out"]]]
    rubrics += [file["shared_pool"]["criteria"]] if pool else []
    for rubric in rubrics:
        for k, criterion in enumerate(rubric):
            if which(k):
                criterion.pop("check", None)
    return yaml.safe_dump(file, sort_keys=False)


def write(
    folder: Path,
    model: Path,
    tasks: str,
    endpoint: ScriptedEndpoint | None = None,
    steps: int = 3,
    judge: dict[str, Any] | None = None,
    **spec: Any,
) -> tiny.Paths:
    """A tiny spec with these tasks and a judge at an endpoint."""
    paths = tiny.write_spec(folder, model, steps)
    (folder / "texts" / "animals.yaml").write_text(tasks)
    content = yaml.safe_load(paths.spec.read_text())
    if endpoint is not None:
        rest = {"retries": 0, "timeout": 10.0, "concurrency": 8}
        at = {"base_urls": [endpoint.base_url], "model": "scripted"}
        content["roles"]["judge"] = at | rest | (judge or {})
    for key, value in spec.items():
        content[key] = {**content.get(key, {}), **value}
    paths.spec.write_text(yaml.safe_dump(content))
    return paths


def run(paths: tiny.Paths, *args: str) -> tiny.Result:
    done = tiny.invoke("train", paths.spec, *args)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done


def metrics(paths: tiny.Paths) -> list[dict[str, Any]]:
    return tiny.rows(paths.run / "metrics.jsonl")


def rollouts(paths: tiny.Paths) -> list[dict[str, Any]]:
    return [row for path in sorted((paths.run / "rollouts").iterdir()) for row in tiny.rows(path)]


def groups(paths: tiny.Paths) -> list[Group]:
    return [r for r in read_log(paths.run / "events.jsonl") if isinstance(r, Group)]


# --- criteria in words ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Any]:
    """What three static steps come to when checks decide everything."""
    paths = write(tmp_path_factory.mktemp("checked"), tiny_model, tiny.TASKS_YAML)
    run(paths, "--recipe", "grpo", "--no-probe")
    return outcome(paths)


def outcome(paths: tiny.Paths) -> dict[str, Any]:
    """What does not depend on who decides."""
    texts = [(row["response"], row["reward"], list(row["verdicts"].values())) for row in rollouts(paths)]
    assert any(True in met for _, _, met in texts) and any(False in met for _, _, met in texts)
    return {"rollouts": texts, "weights": tiny.content(paths.run)["weights"]}


@pytest.mark.parametrize(
    ("which", "batch"), [("all", "criterion"), ("all", "rubric"), ("mixed", "criterion")]
)
def test_a_judge_that_says_what_checks_say_trains_the_same_policy(
    which: str,
    batch: str,
    checked: dict[str, Any],
    endpoint: ScriptedEndpoint,
    tmp_path: Path,
    tiny_model: Path,
) -> None:
    tasks = in_words(lambda k: which == "all" or k % 2 == 0)
    paths = write(tmp_path, tiny_model, tasks, endpoint, judge={"batch": batch})
    run(paths, "--recipe", "grpo", "--no-probe")
    assert outcome(paths) == checked
    assert [row["unscored_share"] for row in metrics(paths)] == [0.0] * 3
    assert [row["unscored_causes"] for row in metrics(paths)] == [{}] * 3
    told = {criterion for body in endpoint.bodies for criterion in asked(body).criteria}
    assert ("Has three words or more." in told) == (which == "all")
    assert "The letter e occurs." in told


def test_checks_on_what_a_judge_extracts_train_the_same_policy(
    checked: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    """When it extracts everything. The questions are on the judge's account."""
    file = yaml.safe_load(tiny.TASKS_YAML)
    for task in [*file["train"], *file["held_out"]]:
        for criterion in task["rubric"]:
            criterion["extract"] = "everything"
    with ScriptedEndpoint(copying(lambda response, part: response)) as endpoint:
        paths = write(tmp_path, tiny_model, yaml.safe_dump(file, sort_keys=False), endpoint)
        run(paths, "--recipe", "grpo", "--no-probe")
        assert outcome(paths) == checked
        asked_for = metrics(paths)[-1]["roles"]["judge"]["train"]
        assert asked_for["calls"] == len(endpoint.bodies) > 0
    without = write(tmp_path / "without", tiny_model, yaml.safe_dump(file))
    done = tiny.invoke("validate", without.spec)
    assert done.exit_code == 2 and "a criterion with `extract` needs a judge role" in done.output


def test_an_evolving_run_counts_all_that_its_judge_took(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    prices = {"input": 3.0, "output": 7.0}
    tasks = in_words(lambda k: k != 1, pool=True)
    paths = write(tmp_path, tiny_model, tasks, endpoint, steps=4, judge={"prices": prices, "cache": 0})
    run(paths)
    records = read_log(paths.run / "events.jsonl")
    end = records[-1]
    assert isinstance(end, RunFinished)
    by_purpose = end.roles["judge"]
    assert {"train", "critic", "probe"} == by_purpose.keys()
    total = {key: sum(used[key] or 0 for used in by_purpose.values()) for key in by_purpose["train"]}
    assert total["calls"] == total["attempts"] == len(endpoint.bodies)
    assert total["failed"] == 0
    words = sum(len(body["messages"][0]["content"].split()) for body in endpoint.bodies)
    assert total["tokens_in"] == words
    assert total["tokens_out"] == 4 * len(endpoint.bodies)  # {"reason": "because", "met": true}
    assert total["cost"] == pytest.approx((3.0 * total["tokens_in"] + 7.0 * total["tokens_out"]) / 1e6)
    last = metrics(paths)[-1]["roles"]["judge"]
    assert last["train"] == by_purpose["train"], "no step after the last one"
    counts = [row["roles"]["judge"]["train"]["calls"] for row in metrics(paths)]
    assert counts == sorted(counts) and counts[0] > 0
    assert any(isinstance(record, Decision) and record.measured for record in records)
    told = tiny.invoke("report", paths.run)
    assert told.exit_code == 0, told.output + repr(told.exception)


def test_the_same_seed_and_judge_give_the_same_run(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    found = []
    for name in ("one", "two"):
        tasks = in_words(pool=True)
        every = {"rollouts": 8, "extended_rollouts": 16, "test": "none"}  # every candidate is accepted
        changes = {"reward": {"dropout": 0.4}, "evolver": {"critic": every}}
        paths = write(tmp_path / name, tiny_model, tasks, endpoint, **changes)
        run(paths, "--no-probe")
        found.append(tiny.content(paths.run))
    for part in found[0]:
        assert found[0][part] == found[1][part], part
    assert any(isinstance(record, Accepted) for record in read_log(paths.run / "events.jsonl"))


def test_verdicts_are_kept_in_the_run_folder(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    """A step that is done again after a crash asks nothing again."""
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=3, logging={"checkpoint_every": 9})
    run(paths, "--recipe", "grpo", "--no-probe")
    assert (paths.run / "verdicts.sqlite").is_file()
    first = rollouts(paths)
    questions = [json.dumps(body["messages"]) for body in endpoint.bodies]
    assert len(set(questions)) == len(questions) > 0, "none is asked twice"
    for checkpoint in (paths.run / "checkpoints").iterdir():
        (checkpoint / "COMPLETE").unlink()
    log = paths.run / "events.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:-1]))
    endpoint.answer = lambda body: Reply(status=500)
    done = tiny.invoke("train", "--resume", paths.run)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert rollouts(paths) == first
    assert len(endpoint.bodies) == len(questions)


# --- rows with criteria in words ------------------------------------------------------------------


def test_verl_rows_train_with_a_judge(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    rows = data_file("verinstruct_verl.jsonl")
    endpoint.answer = judging(lambda response, criterion: (len(response) + len(criterion)) % 3 > 0)
    engine = {"max_prompt_tokens": 8000}  # the tiny tokenizer has a token for each letter or two
    paths = write(tmp_path, tiny_model, in_words(), endpoint, engine=engine)
    done = run(paths, "--tasks", str(rows), "--steps", "2")
    assert "left out" not in done.output
    assert [row["unscored_share"] for row in metrics(paths)] == [0.0] * 2
    assert all(row["reward_mean"] is not None for row in metrics(paths))
    given = [json.loads(line) for line in rows.read_text().splitlines()]
    texts = {rubric["criterion"] for row in given for rubric in row["reward_model"]["rubrics"]}
    told = {criterion for body in endpoint.bodies for criterion in asked(body).criteria}
    assert told and told <= texts
    prompts = {row["prompt"][0]["content"] for row in given}
    assert {asked(body).request for body in endpoint.bodies} <= prompts
    assert [r for r in rollouts(paths) if r["reward"] not in (0.0, 1.0)], "neither all nor nothing met"


def test_verl_rows_are_refused_without_a_judge(tmp_path: Path, tiny_model: Path) -> None:
    paths = write(tmp_path, tiny_model, tiny.TASKS_YAML)
    rows = data_file("verinstruct_verl.jsonl")
    done = tiny.invoke("train", paths.spec, "--tasks", rows, "--steps", "2")
    assert done.exit_code == 2
    assert "needs a judge role" in done.output and "no task to train on" in done.output
    assert not paths.runs.exists(), "nothing was started"


# --- a judge that fails ---------------------------------------------------------------------------


def test_a_judge_that_always_fails_stops_the_run_and_a_healthy_one_goes_on(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    healthy, endpoint.answer = endpoint.answer, lambda body: Reply("overloaded", status=503)
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=5, logging={"checkpoint_every": 9})
    done = tiny.invoke("train", paths.spec, "--no-probe")
    assert done.exit_code == 1
    told = " ".join(done.output.split())
    assert "100% of the verdicts are unscored" in told
    assert "reward.max_unscored 0.3" in told
    assert "x judge: HTTP 503" in told
    assert f"harnessrl train --resume {paths.run}" in told
    blind = metrics(paths)
    assert [row["step"] for row in blind] == [0, 1, 2]
    for row in blind:
        assert (row["unscored_share"], row["unrewarded_share"], row["reward_mean"]) == (1.0, 1.0, None)
        assert list(row["unscored_causes"]) == ["judge: HTTP 503"]
        assert row["loss"] == 0.0, "nothing is learnt from what nobody judged"
    assert all(set(row["verdicts"].values()) == {None} for row in rollouts(paths))
    found = latest_checkpoint(RunFolder(paths.run))
    assert found is not None and found[0] == 3
    failed = blind[-1]["roles"]["judge"]["train"]
    assert failed["failed"] == failed["calls"] > 0

    endpoint.answer = healthy
    done = tiny.invoke("train", "--resume", paths.run)
    assert done.exit_code == 0, done.output + repr(done.exception)
    later = metrics(paths)
    assert tiny.timeless(later[:3]) == tiny.timeless(blind)
    assert [row["unscored_share"] for row in later[3:]] == [0.0, 0.0]
    assert all(row["reward_mean"] is not None for row in later[3:])
    now = later[-1]["roles"]["judge"]["train"]
    assert now["failed"] == failed["failed"] and now["calls"] > failed["calls"]


def test_a_judge_that_is_still_dead_stops_the_resumed_run_again(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    endpoint.answer = lambda body: Reply("I cannot judge this.")
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=6)
    for steps_done in (3, 4):
        args = (
            ("--resume", paths.run) if steps_done > 3 else (paths.spec, "--no-probe", "--recipe", "grpo")
        )
        done = tiny.invoke("train", *args)
        assert done.exit_code == 1
        assert "the judge's answer is no verdict" in " ".join(done.output.split())
        assert [row["step"] for row in metrics(paths)] == list(range(steps_done))


def test_a_few_unscored_verdicts_are_told_and_never_counted_as_unmet(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    """One criterion can never be judged: its verdicts are None, and it is dropped from the rewards."""
    healthy = endpoint.answer

    def answer(body: Body) -> Reply:
        if "A digit occurs." in asked(body).criteria:
            return Reply("", finish="length", reasoning="Hm. " * 100)
        return healthy(body)

    endpoint.answer = answer
    reward = {"max_dropped": 0.3, "max_unscored": 0.4}
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=4, reward=reward)
    run(paths, "--recipe", "grpo", "--no-probe")
    task_file = load_task_file(paths.folder / "texts" / "animals.yaml")
    texts = {c.id: c for task in task_file.train for c in task.rubric}
    for row in rollouts(paths):
        unscored = [texts[name].text for name, met in row["verdicts"].items() if met is None]
        assert unscored == (["A digit occurs."] if len(row["verdicts"]) == 3 else [])
        gained = sum(texts[name].points for name, met in row["verdicts"].items() if met)
        most = sum(c.points for name, c in texts.items() if name in row["verdicts"] and c.points > 0)
        assert row["reward"] == pytest.approx(gained / most)
    for row in metrics(paths):
        with_digit = sum(
            len(g.rewards) for g in groups(paths) if g.step == row["step"] and len(g.met) == 3
        )
        causes = {"the judge ran out of tokens before it answered": with_digit} if with_digit else {}
        assert row["unscored_causes"] == causes
        n_verdicts = sum(len(r["verdicts"]) for r in rollouts(paths) if r["step"] == row["step"])
        assert row["unscored_share"] == pytest.approx(with_digit / n_verdicts)
        assert row["unrewarded_share"] == 0.0


def test_a_run_without_its_key_says_which(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINY_JUDGE_KEY", raising=False)
    judge = {"api_key_env": "TINY_JUDGE_KEY"}
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=1, judge=judge)
    done = tiny.invoke("train", paths.spec, "--no-probe")
    assert done.exit_code == 2
    assert "TINY_JUDGE_KEY is not set" in done.output and "roles.judge.api_key_env" in done.output
    assert not paths.run.exists()
    monkeypatch.setenv("TINY_JUDGE_KEY", "sk-very-secret")
    done = tiny.invoke("train", paths.spec, "--no-probe")
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-very-secret"}
    written = [path for path in paths.run.rglob("*") if path.is_file()]
    assert not [path for path in written if b"very-secret" in path.read_bytes()]


def row(share: float, **causes: int) -> dict[str, Any]:
    return {"unscored_share": share, "unscored_causes": causes}


@pytest.mark.parametrize(
    ("shares", "limit", "stops"),
    [
        ([1.0, 1.0], 0.3, False),
        ([1.0, 1.0, 1.0], 0.3, True),
        ([0.31, 0.4, 0.31], 0.3, True),
        ([0.3, 0.3, 0.3], 0.3, False),
        ([1.0, 0.3, 1.0], 0.3, False),
        ([1.0, 1.0, 1.0, 0.0], 0.3, False),
        ([1.0, 1.0, 1.0, 0.0, 1.0, 1.0], 0.3, False),
        ([0.0, 1.0, 1.0, 1.0], 0.3, True),
        ([1.0] * 9, 1.0, False),
        ([0.01] * 3, 0.0, True),
        ([0.0] * 9, 0.0, False),
    ],
)
def test_three_steps_in_a_row_stop_a_run(
    shares: list[float], limit: float, stops: bool, world: World
) -> None:
    spec = world.spec.model_copy(update={"reward": Reward(max_unscored=limit)})
    told = cannot_judge([row(share, a=3, b=2, c=1, d=1) for share in shares], spec)
    assert (told is not None) == stops
    if told is not None:
        assert f"{shares[-1]:.0%} of" in told and "3 x a, 2 x b, 1 x c" in told and "1 x d" not in told


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- rubric dropout -------------------------------------------------------------------------------


def test_dropout_leaves_out_the_same_criteria_for_a_whole_group(
    endpoint: ScriptedEndpoint, tmp_path: Path, tiny_model: Path
) -> None:
    reward = {"dropout": 0.4}
    paths = write(tmp_path, tiny_model, in_words(), endpoint, steps=4, reward=reward)
    run(paths, "--recipe", "grpo", "--no-probe")
    rubrics = {
        task.id: {c.id: c.text for c in task.rubric}
        for task in load_task_file(paths.folder / "texts" / "animals.yaml").train
    }
    left_out = Counter()
    for group in groups(paths):
        whole = rubrics[group.task_id]
        assert len(group.met) == {3: 2, 2: 2}[len(whole)], "int(0.4 * 3) is one"
        assert list(group.met) == [name for name in whole if name in group.met], "in order"
        left_out.update(whole[name] for name in whole if name not in group.met)
    assert len(left_out) > 1, "not the same for all groups"
    by_group: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for rollout in rollouts(paths):
        by_group.setdefault((rollout["step"], rollout["slot"]), set()).add(tuple(rollout["verdicts"]))
    assert by_group == {(g.step, g.slot): {tuple(g.met)} for g in groups(paths)}
    assert metrics(paths)[-1]["judge_calls"]["train"] == sum(len(r["verdicts"]) for r in rollouts(paths))


@pytest.mark.parametrize("dropout", [0.2, 0.4, 0.7, 0.99])
def test_dropout_never_takes_the_last_positive_criterion(dropout: float, tmp_path: Path) -> None:
    world = World(tmp_path, reward={"dropout": dropout})
    for step in range(30):
        world.play(step)
    sizes = Counter()
    for group in world.logged(Group):
        rubric = {c.id: c for c in world.tasks[group.task_id].rubric}
        sizes[len(rubric), len(group.met)] += 1
        assert any(rubric[name].points > 0 for name in group.met)
    assert sizes.keys() == {(n, max(1, n - int(dropout * n))) for n in (2, 3)}


def test_dropout_follows_the_seed_and_a_claim_keeps_its_rubric(tmp_path: Path) -> None:
    def left(name: str, **changes: Any) -> list[list[str]]:
        world = World(tmp_path / name, reward={"dropout": 0.5}, **changes)
        world.claims(0)
        for step in range(10):
            world.play(step)
        return [list(group.met) for group in world.logged(Group)]

    assert left("one") == left("two")
    assert left("one-more") != left("other", seed=4)


def test_without_dropout_every_criterion_counts(world: World) -> None:
    for step in range(3):
        world.play(step)
    for group in world.logged(Group):
        assert list(group.met) == [c.id for c in world.tasks[group.task_id].rubric]


def test_a_spec_with_a_judge_is_read(tmp_path: Path, endpoint: ScriptedEndpoint) -> None:
    judge = {"batch": "rubric", "prices": {"input": 1.0, "output": 2.0}, "deadline": 9.0}
    paths = write(tmp_path, Path("nowhere"), in_words(), endpoint, judge=judge)
    read = load_run_spec(paths.spec).spec.roles.judge
    assert read is not None
    assert (read.base_urls, read.batch, read.deadline) == ((endpoint.base_url,), "rubric", 9.0)
