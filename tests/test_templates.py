"""A person's own prompt templates: whatever is wrong with one is told with its place, before a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from harnessrl.prompts import check_templates, render
from harnessrl.prompts.check import GIVEN, SHOWN
from harnessrl.specs.loader import SpecError

ROOT = Path(__file__).resolve().parent.parent
GOOD = "{{ criterion }} {{ response }}"


def faults(folder: Path, text: str | bytes, key: str = "judge", **more: str) -> list[str]:
    """What is said of a template, without its file."""
    file = folder / f"own-{len(list(folder.iterdir()))}.md"  # templates are kept by the names of files
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        check_templates(**{key: str(file)}, **more)
    except SpecError as error:
        return [line.removeprefix(f"{file}:") for line in str(error).splitlines()]
    return []


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        (f"{GOOD}\n\n a {{{{ criterion + 1 }}}}", "3:4", "TypeError: can only concatenate str"),
        (f"{GOOD}\n{{{{ 1/0 }}}}", "2:1", "ZeroDivisionError: division by zero"),
        (f"{GOOD}\nab\xe9".encode("latin-1"), "2:3", "byte 0xe9 is not UTF-8"),
        (
            f"{GOOD}\n{{{{ respnse }}}}",
            "2:4",
            "respnse is undefined (did you mean response?); allowed: criterion, fence, prompt, response",
        ),
        (
            f'{GOOD}\n{{% include "juge.md" %}}',
            "2:13",
            "there is no template juge.md (did you mean judge.md?)",
        ),
        (
            f"{GOOD} {{{{ prompt | uper }}}}",
            "1:44",
            "there is no filter uper (did you mean upper?); allowed: abs",
        ),
        (
            f"{GOOD} {{% if prompt is strng %}}{{% endif %}}",
            "1:48",
            "there is no test strng (did you mean",
        ),
        (f"{GOOD}\n{{% if prompt %}}", "2:1", "not a Jinja2 template: Unexpected end of template"),
        ("{{ criterion }}", "1:1", "it does not show response: write {{ response }}"),
        ("{{ response }}", "1:1", "it does not show criterion: write {{ criterion }}"),
        ("{{ response }}{% if criterion %}x{% endif %}", "1:1", "it does not show criterion"),
        (f"{GOOD} {{{{ response[0] }}}}", "1:1", "str object has no element 0"),  # it may be empty
    ],
)
def test_what_is_wrong_with_a_template_has_a_place(
    text: str | bytes, at: str, told: str, tmp_path: Path
) -> None:
    (line,) = faults(tmp_path, text)
    assert line.startswith(f"{at}: roles.judge.prompt: ") and told in line


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        '{% include "judge.md" %}',
        GOOD + "{% if nothing is defined %}{{ nothing }}{% endif %}{{ nobody | default('') }}",
        GOOD + "{% set mine = 1 %}{{ mine }}{% for n in range(2) %}{{ n }}{{ loop.index }}{% endfor %}",
        "{{ criterion | upper }} {{ response | trim }}",
    ],
)
def test_what_is_right_is_let_be(text: str, tmp_path: Path) -> None:
    assert faults(tmp_path, text) == []


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    lines = faults(tmp_path, f"{GOOD}\n{{{{ a }}}}\n{{{{ b }}}} {{{{ a }}}}")
    assert [line.split(":")[:2] for line in lines] == [["2", "4"], ["3", "4"]]


@pytest.mark.parametrize(
    ("key", "more", "text", "told"),
    [
        ("judge", {"batch": "rubric"}, GOOD, "criterion is undefined (did you mean criteria?)"),
        ("oracle", {}, "{{ first }}", "oracle.prompt: it does not show second"),
        ("oracle", {"kind": "reference"}, "{{ reference }}", "oracle.prompt: it does not show response"),
        (
            "propose",
            {},
            "{{ prompt }}{% for r in responses %}{{ r.txt }}{% endfor %}",
            "evolver.propose.prompt: cannot be rendered: it has no txt (did you mean text?); "
            "allowed: reward, quality, text",
        ),
        ("propose", {}, "{{ prompt }}{% if not judged %}{{ 1/0 }}{% endif %}", "ZeroDivisionError"),
        (
            "attribute",
            {},
            "{{ prompt }}{{ rubric[0].poinst }}",
            "it has no poinst (did you mean points?)",
        ),
        ("attribute", {}, "{{ prompt }}{{ rival.upper() }}", "cannot be rendered"),  # there may be none
    ],
)
def test_each_template_has_its_own_names(
    key: str, more: dict[str, str], text: str, told: str, tmp_path: Path
) -> None:
    (line,) = faults(tmp_path, text, key, **more)
    assert told in line


def test_validate_names_every_template(tmp_path: Path) -> None:
    for name, text in {
        "j": "{{ criterion + 1 }}",
        "o": "{{ firt }}",
        "p": "{{ prompt }}{{ 1/0 }}",
    }.items():
        (tmp_path / f"{name}.md").write_text(text)
    at = "{base_urls: ['http://localhost:1/v1'], model: "
    spec = tmp_path / "s.yaml"
    spec.write_text(
        f"extends: {ROOT / 'specs' / 'sim.yaml'}\n"
        f"roles: {{judge: {at}x, prompt: j.md}}, oracle: {at}y}}, evolver: {at}z}}}}\n"
        "oracle: {kind: pairwise, prompt: o.md}\nevolver: {propose: {role: evolver, prompt: p.md}}\n"
    )
    done = tiny.invoke("validate", spec)
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    starts = [line.split(": ")[:2] for line in done.output.splitlines()]
    assert starts == [
        [f"{tmp_path / 'j.md'}:1:1", "roles.judge.prompt"],
        [f"{tmp_path / 'o.md'}:1:4", "oracle.prompt"],
        [f"{tmp_path / 'p.md'}:1:1", "evolver.propose.prompt"],
    ]


@pytest.mark.parametrize("name", ["attribute", "propose"])
def test_only_what_was_measured_is_said_to_be(name: str) -> None:
    everything = GIVEN[name][0]
    heading = "Changes on other tasks with similar failures, and what "
    assert f"{heading}was measured:" in render(name, **everything)
    assert f"{heading}became of them:" in render(name, **everything | {"measured": False})


def test_the_docs_name_what_each_template_is_given() -> None:
    section = (ROOT / "docs" / "judging.md").read_text().partition("## A template of your own")[2]
    for name in ("judge", "judge_rubric", "compare", "grade", "attribute", "propose"):
        for key in {*GIVEN[name][0], *SHOWN[name]}:
            assert f"`{key}`" in section
