"""RaR's pitfalls: what a criterion earns follows from what it says, whatever its weight's sign."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from harnessrl.agents.scoring.reward import group_rewards
from harnessrl.specs.tasks import Task
from harnessrl.trainer.data.converters import CONVERTERS, recognised
from harnessrl.trainer.data.converters.common import converted
from harnessrl.trainer.data.converters.rar import polarity
from tiny import data_file

#: Pitfalls that a good response meets (worded as what is wanted), as RaR-Science has them.
GOOD = [
    "Pitfall Criteria: The response should not attribute the colour to ocean reflection.",
    "Pitfall Criteria: The response shouldn't mix up mass and weight.",
    "The response must not ignore friction.",
    "The final answer should avoid unexplained jargon.",
    "The response should carefully avoid double counting.",
    "It should never recommend aspirin to children.",
    "Pitfall Criteria: Should not omit the units.",
    "Pitfall Criteria: Avoids incorrectly naming a single cause.",
    "Avoids jargon.",
    "The response refrains from speculation.",
    "Never assumes that the gas is ideal.",
    "Never recommend aspirin to children.",
    "Pitfall Criteria: Does not confuse speed with velocity.",
    "The response does not incorrectly state that the reaction is endothermic.",
    "The model doesn\u2019t misinterpret the symbol.",
    "Pitfall Criteria: The explanation is free of circular arguments.",
    "Do not assume that the gas is ideal.",
    "Pitfall Criteria: The response should mention the idealisation, which is often forgotten.",
    "It is important not to skip the boundary terms.",
    "Warns against mixing up molar and molecular mass.",
    # As RaR-Medicine has most of its own.
    "Pitfall Criteria: Does not mention unrelated disorders of the liver.",
    "Pitfall Criteria: Does not recommend inappropriate imaging.",
    "Pitfall Criteria: Does not include organs other than the spleen.",
    "Pitfall Criteria: Does not overlook the age of the patient.",
]
#: Pitfalls that a bad response meets, as RaR-Medicine has them.
BAD = [
    "Pitfall Criteria: Doesn't consider drug interactions.",
    "The response does not explicitly state the diagnosis.",
    "Pitfall Criteria: Fails to name the vessel.",
    "Pitfall Criteria: Failing to rule out pregnancy.",
    "Pitfall Criteria: Omits the follow-up.",
    "Pitfall Criteria: Overlooks renal function.",
    "Pitfall Criteria: Recommends surgery as the first step.",
    "Pitfall Criteria: States that antibiotics should not be used.",
    "Pitfall Criteria: Suggests that the patient must not be moved.",
    "Pitfall Criteria: No mention of the warning signs.",
    "The response confuses type 1 with type 2 diabetes.",
    "Pitfall Criteria: Incorrectly identifies the enzyme.",
    "Pitfall Criteria: Misses that patients do not need treatment.",
    "Pitfall Criteria: Does not justify the choice of drug.",
    "The response cannot explain why.",
    "The model never verifies the unit.",
    "Pitfall Criteria: Incorrectly explains the reflex.",
]
#: The same words are a fault or a virtue, by what they are about.
UNCLEAR = [
    "Pitfall Criteria: Does not zigzag around the topic.",
    "Pitfall Criteria: Does not mention the thyroid.",
    "Pitfall Criteria: Does not recommend or include the saphenous vein.",
    "Pitfall Criteria: The patient should not be given aspirin.",
    "The response never states the unit.",
    "Pitfall Criteria: Avoids discussing the risks of the procedure.",
    "Avoids mention of contraindications.",
    "Pitfall Criteria: Refrains from recommending a referral.",
    "Pitfall Criteria: The response should zigzag around the topic.",
]


def row(*entries: tuple[str, int, str]) -> dict[str, Any]:
    rubric = [{"description": text, "weight": weight, "title": title} for text, weight, title in entries]
    return {
        "question": "Why is the sky blue?",
        "reference_answer": "Rayleigh scattering.",
        "question_source": "synthetic",
        "rubric": rubric,
        "rubric_list": [text for text, *_ in entries],
        "rubric_count": len(entries),
    }


def task_of(source: str, given: dict[str, Any]) -> Task:
    task = converted(CONVERTERS[source], given)
    assert not isinstance(task, str), task
    return task


def rebuilt(task: Task) -> list[dict[str, Any]]:
    """The source's rubric, from the task alone."""
    entries = []
    for criterion in task.rubric:
        tags = dict(tag.split(":", 1) for tag in criterion.tags or ())
        weight = int(float(tags.get("weight", criterion.points)))
        entries.append({"description": criterion.text, "title": tags["title"], "weight": weight})
    assert task.origin is not None and task.origin.more is not None
    for aside in task.origin.more.get("unclear_pitfalls", []):
        entries.insert(aside["at"], {name: value for name, value in aside.items() if name != "at"})
    return entries


@pytest.mark.parametrize("text", GOOD)
def test_what_is_wanted_is_told(text: str) -> None:
    assert polarity(text) == "good"


@pytest.mark.parametrize("text", BAD)
def test_what_goes_wrong_is_told(text: str) -> None:
    assert polarity(text) == "bad"


@pytest.mark.parametrize("text", UNCLEAR)
def test_a_title_tells_where_the_text_does_not(text: str) -> None:
    assert polarity(text) == "unclear"
    expected = "unclear" if re.search("Avoids|Refrains", text) else "bad"
    assert polarity(text, "Misses Duration") == polarity(text, "Omission") == expected
    assert polarity(text, "No Ocean Myth") == polarity(text, "Avoids Myth") == "good"


@pytest.mark.parametrize(("pitfalls", "good_meets"), [(GOOD, True), (BAD, False)])
def test_the_better_response_always_earns_more(pitfalls: list[str], good_meets: bool) -> None:
    """Two responses differ in one pitfall alone; the one that avoids it has the higher reward."""
    for text in pitfalls:
        task = task_of(
            "rar-science", row(("Essential Criteria: Names scattering.", 5, ""), (text, -2, ""))
        )
        met_GK = np.array([[1.0, float(good_meets)], [1.0, float(not good_meets)]])
        points_K = np.array([c.points for c in task.rubric])
        (good, bad), _ = group_rewards(points_K, met_GK, max_dropped=0.2)
        assert good > bad, text
        assert [abs(c.points) for c in task.rubric] == [5.0, 2.0]
        assert task.rubric[1].text == text


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Does not mention unrelated findings.", "Lacks Findings"),  # text and title disagree
        ("Does not explain the irrelevant result.", ""),
        ("Does not mention the risk of bleeding.", "Avoids Harm"),
        ("Does not mention any drug unless asked to.", "Omits Drugs"),
        ("Recommends against surgery.", "Avoids Surgery"),
        ("Recommends rest alone and avoids other advice.", ""),
        ("Explains the mechanism.", "Mechanism"),
    ],
)
def test_where_signs_disagree_nothing_is_concluded(text: str, title: str) -> None:
    assert polarity(f"Pitfall Criteria: {text}", title) == "unclear"


def test_a_pitfall_that_nobody_can_read_is_set_aside_and_kept() -> None:
    given = row(("Essential Criteria: Names it.", 5, "a"), (UNCLEAR[0], -1, "b"), ("Omits it.", -2, "c"))
    task = task_of("rar-medicine", given)
    assert [(c.text, c.points) for c in task.rubric] == [
        ("Essential Criteria: Names it.", 5.0),
        ("Omits it.", -2.0),
    ]
    assert rebuilt(task) == given["rubric"]


@pytest.mark.parametrize(
    ("source", "name"), [("rar-medicine", "rar_medicine"), ("rar-science", "rar_science")]
)
def test_rows_of_the_documented_schema_can_be_rebuilt(source: str, name: str) -> None:
    path = data_file(f"schema_stubs/{name}.SYNTHETIC.jsonl")
    for line in path.read_text().splitlines():
        given = json.loads(line)
        assert recognised(given) is CONVERTERS[source]
        task = task_of(source, given)
        assert task.prompt == given["question"]
        assert (task.reference or "") == given["reference_answer"]
        assert rebuilt(task) == given["rubric"]


def test_the_two_sets_word_their_pitfalls_differently() -> None:
    medicine = json.loads(
        data_file("schema_stubs/rar_medicine.SYNTHETIC.jsonl").read_text().split("\n")[0]
    )
    science = json.loads(data_file("schema_stubs/rar_science.SYNTHETIC.jsonl").read_text().split("\n")[0])
    assert [c.points for c in task_of("rar-medicine", medicine).rubric] == [5.0, 3.0, 1.0, -1.0]
    assert [c.points for c in task_of("rar-science", science).rubric] == [5.0, 1.0]
