# ruff: noqa: RUF001  (text of other scripts)
"""Guidance: how it fades, which rollouts of a group see which lines, and how it may leak."""

from __future__ import annotations

import time

import numpy as np
import pytest
from harnessrl.prompts import guided_prompt
from harnessrl.specs.guidance import (
    FIELDS,
    Dose,
    Guidance,
    LinearFade,
    Shown,
    SigmoidFade,
    StartGuidance,
    SuccessFade,
    in_order,
    mentions_guidance,
    overlap,
    show,
    strength,
)
from harnessrl.specs.sampling import stream
from harnessrl.specs.tasks import Criterion
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted import says

SIGMOID = SigmoidFade(kind="sigmoid")  # x0 0.2, k 125: RuscaRL's
LINEAR = LinearFade(kind="linear", steps=4)
SUCCESS = SuccessFade(kind="success", reward=0.8, groups=2)


def mounted(lines: object = ("x",), share: Dose = 0.5, **more: object) -> Guidance:
    return Guidance("checklist", lines, share, **more)  # type: ignore[arg-type]


def shown(
    guidance: Guidance, size: int, left: float = 1.0, rubric: tuple[Criterion, ...] = (), seed: int = 0
) -> list[tuple[str, ...]]:
    """The lines that each rollout of a group sees."""
    rollouts = show([guidance], [left], rubric, size, np.random.default_rng(seed))
    return [tuple(line for part in parts for line in part.as_lines()) for parts in rollouts]


# --- fading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "sigma"), [(60, 0.98), (71, 0.48), (80, 0.04)])
def test_the_sigmoid_fade_is_ruscarls(t: int, sigma: float) -> None:
    """arXiv 2508.16949: sigma of step t of 350, counted from 1."""
    assert strength(mounted(fade=SIGMOID), t - 1, 350, []) == pytest.approx(sigma, abs=0.005)


def test_the_sigmoid_fade_starts_full_and_ends_at_nothing() -> None:
    left = [strength(mounted(fade=SIGMOID), step, 350, []) for step in range(350)]
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx(1.0) and left[-1] < 1e-30
    steep = mounted(fade=SigmoidFade(kind="sigmoid", k=1e9))
    assert [strength(steep, step, 11, []) for step in (0, 1, 3, 10)] == pytest.approx([1, 1, 0, 0])
    assert strength(mounted(fade=SIGMOID), 0, 1, []) == pytest.approx(1.0)  # a run of one step


def test_the_linear_fade_counts_from_the_mounting() -> None:
    guidance = mounted(fade=LINEAR, since=10)
    left = [strength(guidance, step, 100, []) for step in (9, 10, 11, 12, 13, 14, 50)]
    assert left == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "left"),
    [
        ([], 1.0),
        ([0.9], 1.0),
        ([0.9, 0.8], 0.0),
        ([0.9, 0.79, 0.9], 1.0),  # successive ones
        ([0.9, None, 0.9], 1.0),  # nothing scored is no success
        ([0.1, 0.9, 0.9, 0.0, 0.0], 0.0),  # solved once is solved: it does not come back
    ],
)
def test_the_success_fade_goes_for_good(rewards: list[float | None], left: float) -> None:
    assert strength(mounted(fade=SUCCESS), 99, 100, rewards) == left


def test_without_a_fade_guidance_stays() -> None:
    assert [strength(mounted(), step, 50, [1.0] * 9) for step in (0, 25, 49)] == [1.0] * 3


# --- who sees what -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "size", "guided"), [(0.5, 8, 4), (0.5, 7, 3), (0.99, 8, 7), (0.1, 8, 0), (0.5, 1, 0)]
)
def test_a_share_is_rounded_down(share: float, size: int, guided: int) -> None:
    assert shown(mounted(share=share), size) == [("x",)] * guided + [()] * (size - guided)


def test_a_share_of_a_faint_rest_is_rounded_as_the_whole_one() -> None:
    """At step 0 a sigmoid leaves 0.99999...: half of eight is four all the same."""
    left = strength(mounted(fade=SIGMOID), 0, 350, [])
    assert left < 1.0
    assert shown(mounted(share=0.5), 8, left) == [("x",)] * 4 + [()] * 4
    assert shown(mounted(share=0.5), 8, 0.5) == [("x",)] * 2 + [()] * 6
    assert shown(mounted(share=0.5), 8, 0.0) == [()] * 8


@given(st.integers(1, 99), st.integers(1, 16))
def test_some_rollout_stays_plain(percent: int, size: int) -> None:
    assert shown(mounted(share=percent / 100), size)[-1] == ()


@pytest.mark.parametrize("sigma", [1.0, 0.98, 0.48, 0.04, 0.0])
def test_a_ramp_shows_the_first_rollout_most_and_the_last_none(sigma: float) -> None:
    lines = tuple(f"line {i}" for i in range(10))
    size = 8
    found = shown(mounted(lines, "ramp"), size, sigma)
    wanted = [round(10 * (size - 1 - i) / (size - 1) * sigma) for i in range(size)]
    assert [len(rollout) for rollout in found] == wanted
    assert found[-1] == ()
    for rollout in found:
        assert list(rollout) == sorted(set(rollout))  # each at most once, in their order


def test_a_ramp_draws_its_lines_from_the_stream_it_is_given() -> None:
    lines = tuple(f"line {i}" for i in range(10))
    same, again, other = (shown(mounted(lines, "ramp"), 8, seed=seed) for seed in (1, 1, 2))
    assert same == again != other
    seen = {line for seed in range(9) for line in shown(mounted(lines, "ramp"), 8, seed=seed)[5]}
    assert seen == set(lines)  # none is left out for good


def test_a_ramp_over_a_group_of_one_shows_everything() -> None:
    assert shown(mounted(("x", "y"), "ramp"), 1) == [("x", "y")]


def test_rubric_lines_are_the_criteria_in_force_split_into_aims_and_penalties() -> None:
    rubric = (says("alpha"), says("beta", -2.0), says("gamma", 3.0))
    guidance = Guidance("skill", "rubric", 0.5)
    (guided, plain) = show([guidance], [1.0], rubric, 2, stream(0, "guidance"))
    assert plain == ()
    aims = ("The response says alpha.", "The response says gamma.")
    assert guided == (Shown("skill", aims, ("The response says beta.",)),)
    assert guided[0].as_lines() == [*(f"skill: {aim}" for aim in aims), "avoid: The response says beta."]
    (now, _) = show([guidance], [1.0], rubric[:1], 2, stream(0, "guidance"))
    assert now == (Shown("skill", aims[:1]),)  # those of today, not of the mounting


def test_fields_are_shown_beside_each_other() -> None:
    """Each with its own share and its own rest."""
    skill = Guidance("skill", ("s",), 0.75)
    found = show([mounted(("x",), 0.5), skill], [0.5, 1.0], (), 4, stream(0, "guidance"))
    both = (Shown("checklist", ("x",)), Shown("skill", ("s",)))
    assert found == [both, both[1:], both[1:], ()]


def test_one_entry_a_field_in_the_order_of_fields() -> None:
    every = [Guidance(name, (name,), 0.5) for name in FIELDS]
    assert in_order(reversed(every)) == tuple(every)
    newer = mounted(("newer",))
    assert in_order([*every, newer]) == (newer, *every[1:])


def test_what_a_run_starts_with_is_checked() -> None:
    start = StartGuidance(field="outline", lines="rubric", share="ramp", fade=SIGMOID)
    assert start.mounted() == Guidance("outline", "rubric", "ramp", SIGMOID, since=0)
    for wrong in ({"field": "hint"}, {"lines": ()}, {"lines": "criteria"}, {"share": 1.0}):
        with pytest.raises(ValidationError):
            StartGuidance.model_validate({"field": "outline", "lines": ("x",)} | wrong)
    for fade in ({"kind": "linear"}, {"kind": "sigmoid", "k": 0.0}, {"kind": "success", "reward": 1.5}):
        with pytest.raises(ValidationError):
            StartGuidance.model_validate({"field": "outline", "lines": ("x",), "fade": fade})


# --- in the prompt -------------------------------------------------------------------------------


def test_a_plain_rollout_gets_the_prompt_alone() -> None:
    assert guided_prompt("  Write {{ this }}.\n", ()) == "  Write {{ this }}.\n"


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_is_introduced_in_its_own_words(name: str) -> None:
    prompt = guided_prompt("Write.", [Shown(name, ("be <brief>", "be kind"))])  # type: ignore[arg-type]
    first, empty, introduction, *lines = prompt.split("\n")
    assert (first, empty, lines) == ("Write.", "", ["- be <brief>", "- be kind"])
    assert "mention" in introduction  # not to be mentioned
    others = [guided_prompt("Write.", [Shown(other, ("x",))]) for other in FIELDS if other != name]
    assert not any(introduction in other for other in others)


def test_penalties_are_told_as_what_to_avoid() -> None:
    parts = [Shown("checklist", ("be kind",), ("It rambles.",)), Shown("skill", (), ("It lies.",))]
    assert guided_prompt("Write.", parts).split("\n") == [
        "Write.",
        "",
        "Keep to these points, without mentioning them:",
        "- be kind",
        "",
        "Avoid, without mentioning it:",
        "- It rambles.",
        "",
        "Avoid, without mentioning it:",
        "- It lies.",
    ]


# --- leaks ---------------------------------------------------------------------------------------

REFERENCE = "The tides follow the moon, and twice a day the sea comes in."


def test_overlap_is_the_share_of_word_runs_in_the_reference() -> None:
    assert overlap(("the tides follow THE MOON.",), REFERENCE) == 1.0  # 2 runs of 4, case and marks aside
    assert overlap(("say what the tides follow",), REFERENCE) == 0.0
    assert overlap(("twice a day the reader sleeps",), REFERENCE) == pytest.approx(1 / 3)
    assert overlap(("the tides follow the moon", "and be kind to the reader"), REFERENCE) == 2 / 5
    assert overlap(("the moon", "tides"), REFERENCE) == 0.0  # too short to say
    assert overlap((), REFERENCE) == 0.0


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    """Eight characters are a run: two for a word."""
    reference = "天空是蓝色的，因为空气对短波长的光散射得更强。"
    assert overlap(("空气对短波长的光散射得更强",), reference) == 1.0
    assert overlap(("因为空气对短波长，光更强",), reference) == pytest.approx(1 / 4)
    assert overlap(("用两句话说明天空的颜色，并举一个例子",), reference) == 0.0
    assert overlap(("短波长的光",), reference) == 0.0  # too short to say
    japanese = "空が青いのは短い波長の光が強く散乱されるからです。"
    assert overlap(("短い波長の光が強く散乱される",), japanese) == 1.0
    assert overlap(("短い文で、やさしく説明してください",), japanese) == 0.0
    mixed = "先安装 Python 3.12 再运行测试脚本。"
    assert overlap(("请先安装 python 3.12 再运行测试",), mixed) > 0.5


@pytest.mark.parametrize(
    ("line", "reference", "prompt"),
    [
        ("The answer is Paris.", "Paris", "Name the capital of France."),
        ("answer: 427", "427", "What is seven times sixty-one?"),
        ("Say B12 first", "B12.", "Which vitamin is it?"),
        ("答案是巴黎", "巴黎。", "法国的首都是哪里？"),
        ("12.5 km", "The way is 12.5 km long, and steep.", "How long is it?"),
        ("Rayleigh scattering", "It is Rayleigh scattering.", "Why is the sky blue?"),
        ("x^2 - 4 it is", "x^2 - 4", "Expand (x - 2)(x + 2)."),
    ],
)
def test_a_short_line_that_gives_the_answer_away_is_a_leak(
    line: str, reference: str, prompt: str
) -> None:
    assert overlap((line,), reference, prompt) == 1.0
    assert overlap((line,), reference, f"{prompt} {reference}") == 0.0  # no news
    assert overlap(("Be kind.", "Be brief."), reference, prompt) == 0.0


def test_a_whole_reference_is_a_leak_however_many_lines_stand_beside_it() -> None:
    checklist = tuple(f"Say in some plain words what point {n} is about." for n in range(20))
    assert overlap(checklist, REFERENCE) == 0.0
    assert overlap((*checklist, f"That is: {REFERENCE}"), REFERENCE) == 1.0
    assert overlap((*checklist, f"It is {REFERENCE}"), REFERENCE, f"Say: {REFERENCE}") < 0.5


def test_a_reference_too_short_for_a_run_is_one_of_the_lines() -> None:
    checklist = ("Say why you think so, in some plain words.", "Be kind.", "It is Paris")
    assert overlap(checklist, "Paris") == pytest.approx(1 / 3)
    assert overlap(checklist[2:], "Paris") == 1.0
    assert overlap(("Part 1: at most three steps", "Be kind"), "At most three steps.") == 1.0  # a run
    assert overlap(("In at most three steps.", "Be kind"), "three steps") == 1 / 2


def test_a_short_line_that_leaks_nothing_counts_too() -> None:
    reference = "Part 1 of it covers the whole history of Rome. " * 3
    prompt = "Write about Rome."
    assert overlap(("Part 1", "Be polite", "Cite sources", "Say why"), reference, prompt) == 1 / 4
    run = "covers the whole history"
    assert overlap((run, "Be polite"), reference, prompt) == 1 / 2
    assert overlap((run, "?!"), reference, prompt) == 1 / 2


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("Answer yes or no.", "No."),
        ("Say whether it is true or false.", "True"),
        ("Choose A, B, C or D.", "B"),
        ("确认答案正确", "正确"),
        ("Expand it to x^2 + 4", "x^2 - 4"),
        ("Name the language: C++ say", "C#, of 2002"),
        ("Mention the moon", REFERENCE),
        ("the sea", REFERENCE),
        ("Use whole sentences.", "sentence"),
        ("in at most 3 short steps", "3"),
        ("1. Restate the question in your own words first.", "1"),
        ("Say that it is 42.", "42"),
        ("Write it in one sentence.", "sentence"),
        ("Say whether the mood is positive, and why you think that it is so.", "Positive"),
    ],
)
def test_an_ordinary_line_is_no_leak(line: str, reference: str) -> None:
    assert overlap((line,), reference) == 0.0


@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=4), st.text(max_size=20))
def test_an_overlap_is_a_share(reference: str, lines: list[str], prompt: str) -> None:
    assert 0.0 <= overlap(lines, reference, prompt) <= 1.0


def test_the_leak_check_grows_with_the_length_of_lines_and_reference_not_their_product() -> None:
    words = [f"w{n}" for n in range(40_000)]
    start = time.process_time()
    assert overlap((" ".join(words),), " ".join(reversed(words))) == 0.0
    assert time.process_time() - start < 2.0  # by a search per run: minutes


def test_a_response_gives_its_guidance_away_by_naming_or_quoting_it() -> None:
    parts = [Shown("checklist", ("name the moon and the sun first",), ("it rambles on and on again",))]
    prompt = "Why are there tides?"

    def gives_away(response: str, prompt: str = prompt) -> bool:
        return mentions_guidance(response, prompt, parts)

    assert gives_away("As the Checklist says, the moon.")
    assert gives_away("I will name the moon, and the tides.")  # five words in a row
    assert gives_away("Not that it rambles on and on.")  # of what it should avoid, too
    assert not gives_away("I name the moon and tides.")  # four
    assert not gives_away("The moon pulls at the sea.")
    assert not gives_away("")


def test_a_field_is_named_by_its_whole_name() -> None:
    def gives_away(response: str, prompt: str = "Cook something.") -> bool:
        return mentions_guidance(
            response, prompt, [Shown("skill", ("stir well",)), Shown("outline", ("a",))]
        )

    assert not gives_away("A skillet does, with a skillful hand; it is outlined above.")
    assert gives_away("With this skill, as told, I stir.") and gives_away("The outline's first point")
    assert gives_away("**Skill:** stirring") and gives_away("see _outline_")
    assert not gives_away("The skill is to stir.", "What skill does it take?")
    assert gives_away("The skill is to stir.", "What does a skillet do?")


def test_what_a_response_quotes_is_found_in_scripts_without_spaces() -> None:
    parts = [Shown("checklist", ("先说明空气会散射短波长的光",))]
    assert mentions_guidance("先说明空气会散射短波长，再举例", "天空为什么蓝？", parts)
    assert not mentions_guidance("空气会散射光", "天空为什么蓝？", parts)


def test_what_the_prompt_says_itself_gives_nothing_away() -> None:
    parts = [Shown("checklist", ("name the moon and the sun first",))]
    prompt = "Write a checklist. Name the moon and the sun, please."
    assert not mentions_guidance("My checklist: name the moon and the sun.", prompt, parts)
    assert mentions_guidance("name the moon and the sun first", prompt, parts)
    assert not mentions_guidance("A checklist.", "Write.", [])
