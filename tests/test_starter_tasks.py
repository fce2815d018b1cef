"""The starter tasks: their shape, that every check can be scored, and what their rubrics are blind to."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from harnessrl import specs
from harnessrl.agents.scoring.checks import missing_resource, run_check
from harnessrl.agents.scoring.oracle import measure_quality
from harnessrl.specs.checks import MentionsCheck
from harnessrl.specs.loader import dump_yaml, load_task_file
from harnessrl.specs.tasks import Criterion, Quality, Task

PATH = Path(specs.__file__).parent / "tasks" / "starter.yaml"
TASK_FILE = load_task_file(PATH)
#: Thirty-six more, which the quickstart does not use.
MORE_FILE = load_task_file(PATH.with_name("starter60.yaml"))
FIRST: tuple[Task, ...] = (*TASK_FILE.train, *TASK_FILE.held_out)
TASKS: tuple[Task, ...] = (*FIRST, *MORE_FILE.train, *MORE_FILE.held_out)
DOMAINS = {"medical", "science", "writing", "role-play", "instruction-following"}

#: Tasks that start at the lowest reward: what they reward is hardly ever said unasked.
AT_THE_FLOOR = {"small-burn", "rainy-bus"}

#: One answer to each task that a person would be content with.
GOOD = {
    "water-every-day": "water keeps the body healthy and helps it to stay cool.",
    "clean-hands": "Clean hands keep germs away from the food your child eats.",
    "small-burn": "cool the burn under running water for ten minutes then cover it.",
    "blue-sky": "The air in the sky scatters the blue light of the sun.",
    "plants-and-light": '"Leaves turn light and air into sugar."',
    "rain-in-the-street": "soft rain falls on the empty street and on every roof.",
    "plant-sitter": "Thank you dear neighbor for giving my plants water while I was away.",
    "birthday-line": '"Happy birthday to the best grandma I know."',
    "rose-gardener": "My roses need water and sun and a good rich soil.",
    "rainy-bus": '"Good morning and mind the wet step when you board my bus."',
    "one-fruit": "an apple has vitamins that are good for your heart.",
    "a-cat": '"A cat is a soft animal that likes to sleep by the fire on quick paws."',
    "daily-walk": "a walk makes the heart strong and keeps the risk of disease low.",
    "brush-teeth": "Brushing at night cleans sugar off the teeth and so prevents decay.",
    "autumn-leaves": "The leaves turn red when it gets cold and the light fades.",
    "bees-and-honey": '"Bees collect nectar from flowers and dry it in the hive."',
    "moon-at-night": "the moon shines because it reflects the light of the sun.",
    "snow-in-the-village": "soft snow covers every roof in the village and all is white.",
    "get-well-line": '"I hope that you get well soon my friend."',
    "village-baker": "I baked warm bread for you in the oven this morning.",
    "zoo-keeper": "my elephants eat a lot of grass and the bark of trees.",
    "night-train": '"Have a good night and sleep well on the train."',
    "cooking-carrots": "boil carrots in water with salt since they are good for your eyes.",
    "a-dog": '"A loyal dog wags its tail and runs to me."',
    "sleep-at-night": "sleep gives the body time to repair itself and restores your energy.",
    "sunscreen": "Sunscreen protects the skin because it blocks the rays of the sun.",
    "stairs-or-lift": '"Climbing stairs keeps the heart fit and the legs strong."',
    "cover-a-cough": "covering a cough stops germs from flying out and making others sick.",
    "ice-floats": "Ice floats since frozen water is less dense than the liquid around it.",
    "day-and-night": "the earth turns on its axis so each side faces the sun in turn.",
    "thunder-later": '"Light travels much faster than the sound of thunder does."',
    "magnet-and-nail": "A magnet pulls iron because its field lines up the atoms of the metal.",
    "first-line-sea": "a small boat came out of the fog and waves broke on the shore.",
    "apology-note": "Please forgive me for the party I missed and I promise to come next time.",
    "shop-sign": '"Come inside and find a new story to love today."',
    "mountain-view": "golden light falls on every peak while mist fills the valley below.",
    "lighthouse-keeper": "When fog comes I light the lamp so that ships stay clear of the rocks.",
    "school-cook": "today i made a warm soup and fresh bread for your lunch in school.",
    "museum-guard": '"Please step back a little from the old painting my friend."',
    "weather-woman": "Saturday will be cold with rain but on Sunday the sun comes back.",
    "a-bicycle": "a bicycle has two wheels and pedals that move it when you ride.",
    "pack-for-camp": "Pack a warm blanket and dry socks and a torch in your bag.",
    "fresh-fruit": "fruit has vitamins and fiber that keep the body and heart healthy.",
    "warm-up": "A warm muscle is loose and so it is not easily injured in a race.",
    "first-glasses": '"With glasses the eyes can see the board and read it."',
    "drink-less-soda": "soda is full of sugar that harms the teeth and adds weight.",
    "shadow-length": "A shadow grows long because the sun stands low in the evening sky.",
    "boiling-water": "heat turns water into steam and the bubbles of gas rise to the surface.",
    "birds-fly-south": '"Birds fly south to warm places where they find food."',
    "salt-on-roads": "Salt melts the ice on a road so that no car slips on it.",
    "farewell-card": "we will miss you on the team and wish you the best of luck.",
    "old-house": "The house has a broken door and ivy grows over its cracked walls.",
    "toast-at-wedding": '"May our two friends share a long life of love together."',
    "river-in-spring": "the river runs fast with melted snow and flowers grow on its bank.",
    "space-pilot": "This is your pilot and our ship will land on the moon soon.",
    "shepherd": "my sheep ate grass on the hill while my dog watched them all day.",
    "train-conductor": '"Good day and let me help you find your seat on this train."',
    "night-baker": "I bake bread all night so I have to sleep when the day comes.",
    "boil-an-egg": "boil the egg in hot water for some minutes and let it cool.",
    "a-clock": '"An alarm clock rings at a set time to wake you from sleep."',
}

#: Follows the format rules of every task (quoted where that is asked) and answers none.
GAMING = "my aunt keeps old coins in a dusty box."


def ids(task: Task) -> str:
    return task.id


def quality_of(task: Task) -> Quality:
    assert task.quality is not None
    return task.quality


def quality(task: Task, response: str) -> float:
    return measure_quality(quality_of(task), task.prompt, response).total


def reward(task: Task, response: str) -> float:
    verdicts = [run_check(c.check, task.prompt, response) for c in task.rubric if c.check]
    assert all(verdict.met is not None for verdict in verdicts)
    gained = sum(c.points for c, v in zip(task.rubric, verdicts, strict=True) if v.met)
    return gained / sum(c.points for c in task.rubric if c.points > 0)


def test_counts_and_domains() -> None:
    assert len(TASK_FILE.train) == len(TASK_FILE.held_out) == 12
    for split in (TASK_FILE.train, TASK_FILE.held_out):
        counts = Counter(task.domain for task in split)
        assert counts.keys() == DOMAINS
        assert set(counts.values()) <= {2, 3}
    assert len({task.id for task in FIRST}) == 24
    penalised = [task for task in FIRST if any(c.points < 0 for c in task.rubric)]
    assert len(penalised) >= 8


def test_with_the_second_file_there_are_sixty() -> None:
    assert len(MORE_FILE.train) == len(MORE_FILE.held_out) == 18
    for split in (MORE_FILE.train, MORE_FILE.held_out):
        counts = Counter(task.domain for task in split)
        assert counts.keys() == DOMAINS
        assert set(counts.values()) <= {2, 4}
    assert len({task.id for task in TASKS}) == len(GOOD) == 60


def test_prompts_are_short_and_all_different() -> None:
    normalised = {" ".join(re.findall(r"\w+", task.prompt.lower())) for task in TASKS}
    assert len(normalised) == 60
    assert all(15 <= len(task.prompt.split()) <= 45 for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_every_criterion_is_scored_by_a_program_of_this_machine(task: Task) -> None:
    assert 3 <= len(task.rubric) <= 4
    for criterion in (*task.rubric, *task.pool.criteria):
        assert criterion.check is not None
        assert missing_resource(criterion.check) is None
        assert 1 <= abs(criterion.points) <= 3


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_no_measure_of_the_oracle_is_a_criterion(task: Task) -> None:
    concepts = {frozenset(group) for group in quality_of(task).topic}
    for criterion in (*task.rubric, *task.pool.criteria):
        if isinstance(criterion.check, MentionsCheck):
            assert frozenset(criterion.check.terms) not in concepts


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_pools(task: Task) -> None:
    pool: tuple[Criterion, ...] = task.pool.criteria
    assert 6 <= len(pool) <= 9
    assert 2 <= len(task.pool.checklists) <= 3
    assert all(2 <= len(lines) <= 4 for lines in task.pool.checklists)
    criteria = (*task.rubric, *pool)
    assert len({criterion.id for criterion in criteria}) == len(criteria)
    assert len({repr(criterion.check) for criterion in criteria}) == len(criteria)
    assert len({criterion.text for criterion in pool}) == len(pool)
    assert {abs(criterion.points) for criterion in pool} == {2.0, 3.0}


def test_there_is_no_shared_pool() -> None:
    assert not TASK_FILE.shared_pool.criteria and not TASK_FILE.shared_pool.checklists


def test_the_two_lists_may_be_swapped(tmp_path: Path) -> None:
    """Held-out tasks carry all that training on them would need."""
    swapped = {
        "train": [task.model_dump(mode="json", exclude_none=True) for task in TASK_FILE.held_out],
        "held_out": [task.model_dump(mode="json", exclude_none=True) for task in TASK_FILE.train],
    }
    (tmp_path / "swapped.yaml").write_text(dump_yaml(swapped))
    other = load_task_file(tmp_path / "swapped.yaml")
    pairs = [*zip(other.train, TASK_FILE.held_out, strict=True)]
    assert all(now.model_dump() == was.model_dump() for now, was in pairs)


def test_no_comment_stands_between_the_tasks() -> None:
    body = PATH.read_text().partition("\ntrain:")[2]
    assert not re.findall(r"^\s*#.*|\s#\s.*$", body, re.MULTILINE)


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_a_good_answer_is_recognised(task: Task) -> None:
    assert quality(task, GOOD[task.id]) > 0.8


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_the_rubric_is_blind_to_what_the_oracle_sees(task: Task) -> None:
    """Format alone earns the full reward, off topic: what GRPO finds, and the evolver should."""
    gaming = f'"{GAMING}"' if "quotation" in task.prompt else GAMING
    assert reward(task, "") == 0.0
    assert quality(task, gaming) < 0.3 < quality(task, GOOD[task.id])
    if task.id in AT_THE_FLOOR:
        assert reward(task, gaming) < 0.3
    else:
        assert reward(task, gaming) == 1.0


@pytest.mark.parametrize("task", TASKS, ids=ids)
def test_the_oracle_has_many_levels(task: Task) -> None:
    """At least eight totals, over responses that differ in concepts, case, commas and ending."""
    quality_spec = quality_of(task)
    totals = set()
    for n_concepts in range(len(quality_spec.topic) + 1):
        named = [group[0] for group in quality_spec.topic[:n_concepts]]
        for n_fillers, end, shown in itertools.product(
            (1, 3), ("", "."), (str.lower, str.title, lambda text: f'"{text}"')
        ):
            text = " and ".join([*named, *("it is what we had in the end",) * n_fillers]) + end
            totals.add(quality(task, shown(text)))
    assert len(totals) >= 8
    assert min(totals) < 0.2 and max(totals) > 0.6
