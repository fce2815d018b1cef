"""Templates are rendered before a run, with all that they may be given and with the least."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes

from ..specs.errors import Problem, SpecError, did_you_mean
from ..specs.guidance import FIELDS, Shown
from ..specs.tasks import Criterion
from .rendering import environment, guided_prompt, render

Values = dict[str, Any]

_QUOTED = {"fence": "[mark]", "prompt": "a prompt", "response": "a response"}
_CASE: Values = {
    "fence": "[mark]",
    "prompt": "a prompt",
    "rubric": (Criterion(text="a criterion", points=1.0),),
    "guidance": ["a line"],
    "sentence": "a sentence",
    "responses": [{"reward": "0.50", "quality": "0.50", "text": "a response"}],
    "refused": ["a decision"],
    "similar": ["a decision"],
    "interfaces": ("p", "g", "c"),
    "measured": True,
}
_BARE = {
    **_CASE,
    "guidance": [],
    "refused": [],
    "similar": [],
    "interfaces": ("c",),
    "measured": False,
}
_OPS = (
    *("pause", "resume", "boost", "dampen"),
    *("mount", "edit", "fade", "unmount"),
    *("add", "rewrite", "split", "merge", "reweight", "gate", "retire", "restore"),
)
_LEVELS = [{"low": 1, "high": 5, "text": "poor"}, {"low": 6, "high": 10, "text": "good"}]

#: What each template is given, once with everything and once with as little as may be.
GIVEN: dict[str, tuple[Values, ...]] = {
    "judge": ({**_QUOTED, "criterion": "a criterion"}, {"criterion": "", **dict.fromkeys(_QUOTED, "")}),
    "judge_rubric": (
        {**_QUOTED, "criteria": ["a criterion"]},
        {"criteria": [""], **dict.fromkeys(_QUOTED, "")},
    ),
    "compare": (
        {"fence": "[mark]", "prompt": "a prompt", "first": "one", "second": "another"},
        dict.fromkeys(("fence", "prompt", "first", "second"), ""),
    ),
    "grade": (
        {**_QUOTED, "reference": "a good response"},
        {"reference": "", **dict.fromkeys(_QUOTED, "")},
    ),
    "extract": ({**_QUOTED, "what": "a part"},),
    "level": (
        {
            **_QUOTED,
            "title": "a name",
            "criterion": "a criterion",
            "reference": "a good response",
            "levels": _LEVELS,
        },
    ),
    "attribute": (
        {**_CASE, "pairs": [("a class", 1)], "rival": "a sentence"},
        {**_BARE, "pairs": [], "rival": None},
    ),
    "propose": (
        {
            **_CASE,
            "ops": _OPS,
            "retired": _CASE["rubric"],
            "kept": [_CASE["rubric"][0].id],
            "unusable": ["a proposal: a reason"],
            "most_points": "3",
            "judged": True,
        },
        {
            **_BARE,
            "ops": ("add",),
            "retired": [],
            "kept": [],
            "unusable": [],
            "most_points": "3",
            "judged": False,
        },
    ),
}
#: What a template has to show: otherwise its question is the same whatever is asked about.
SHOWN = {
    "judge": ("criterion", "response"),
    "judge_rubric": ("criteria", "response"),
    "compare": ("first", "second"),
    "grade": ("response",),
    "attribute": ("prompt",),
    "propose": ("prompt",),
}


def check_templates(
    propose: str | None = None,
    judge: str | None = None,
    batch: str = "",
    oracle: str | None = None,
    kind: str = "",
    attribute: str | None = None,
) -> None:
    """Render every template, and a person's own, which are given by their files.

    Raises `SpecError` with everything wrong with these: the file, line and column in the template, and
    the key of the spec that names it.
    """
    guided_prompt("a prompt", tuple(Shown(field, ("a line",), ("a line",)) for field in FIELDS))
    for name, given in GIVEN.items():
        for values in given:
            render(name, **values)
    own = (
        ("roles.judge.prompt", "judge_rubric" if batch == "rubric" else "judge", judge),
        ("oracle.prompt", "grade" if kind == "reference" else "compare", oracle),
        ("evolver.attribute.prompt", "attribute", attribute),
        ("evolver.propose.prompt", "propose", propose),
    )
    problems = [
        Problem(file, line, column, key, message)
        for key, name, file in own
        if file is not None
        for line, column, message in _faults(name, file)
    ]
    if problems:
        raise SpecError(problems)


#: Line and column, from 1, and what is wrong there.
_Fault = tuple[int, int, str]


def _faults(name: str, file: str) -> Iterator[_Fault]:
    """What is wrong with the template in a `file`, which stands in for `prompts/NAME.md`."""
    data, text = b"", ""
    try:
        data = Path(file).read_bytes()
        text = data.decode("utf-8")
        tree = environment().parse(text)
        found = sorted([*_no_functions(tree, text), *_no_templates(tree, text)])
        found = found or sorted(_unknown(tree, text, set(GIVEN[name][0])))
    except OSError as error:
        yield 1, 1, f"the file cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        yield line, column, f"byte {data[error.start]:#x} is not UTF-8"
    except TemplateSyntaxError as error:
        yield error.lineno, _column(text, error.lineno), f"not a Jinja2 template: {error.message}"
    else:
        yield from found or _fails(name, file, text)


def _unknown(tree: nodes.Template, text: str, given: set[str]) -> Iterator[_Fault]:
    """Names that nobody gives the template, and that it does not ask whether it has."""
    asked = [test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    asked += [f.node for f in tree.find_all(nodes.Filter) if f.name in ("default", "d") and f.node]
    known = given | set(environment().globals) | {n.name for n in asked if isinstance(n, nodes.Name)}
    for name in meta.find_undeclared_variables(tree) - known:
        line = min(node.lineno for node in tree.find_all(nodes.Name) if node.name == name)
        told = f"{name} is undefined{did_you_mean(name, given)}; allowed: {', '.join(sorted(given))}"
        yield line, _column(text, line, name), told


def _no_functions(tree: nodes.Template, text: str) -> Iterator[_Fault]:
    """Filters and tests that Jinja2 does not have."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        kind = "filter" if isinstance(node, nodes.Filter) else "test"
        there = environment().filters if kind == "filter" else environment().tests
        name = str(getattr(node, "name", ""))
        if name not in there:
            told = f"there is no {kind} {name}{did_you_mean(name, there)}"
            told += f"; allowed: {', '.join(sorted(there))}"
            yield node.lineno, _column(text, node.lineno, name), told


def _no_templates(tree: nodes.Template, text: str) -> Iterator[_Fault]:
    """Templates that it takes in and that are not there."""
    there = environment().list_templates(extensions=["md"])
    for node in tree.find_all((nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)):
        named = getattr(node, "template", None)
        if not isinstance(named, nodes.Const) or getattr(node, "ignore_missing", False):
            continue
        if named.value not in there:
            name = str(named.value)
            told = f"there is no template {name}{did_you_mean(name, there)}; allowed: {', '.join(there)}"
            yield named.lineno, _column(text, named.lineno, name), told


def _fails(name: str, file: str, text: str) -> Iterator[_Fault]:
    """Where rendering ends in an error; or what the template does not show."""
    try:
        shown, *_ = [render(name, file, **values) for values in GIVEN[name]]
        for key in SHOWN.get(name, ()):
            other = ["something else"] if key == "criteria" else "something else"
            if render(name, file, **{**GIVEN[name][0], key: other}) == shown:
                yield 1, 1, f"it does not show {key}: write {{{{ {key} }}}} where it is to stand"
    except Exception as error:  # an expression in somebody's template can raise anything
        frames = traceback.extract_tb(error.__traceback__)
        line = max((frame.lineno or 1 for frame in frames if frame.filename == file), default=1)
        what = str(error) or "it cannot be rendered"
        cause = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        yield line, _column(text, line), f"cannot be rendered: {cause}{what}"


def _column(text: str, line: int, word: str = "") -> int:
    """Where a word, or the first expression, stands in a line of the template; 1 if it does not."""
    code = text.splitlines()[line - 1 : line]
    wanted = rf"(?<![\w.]){re.escape(word)}(?!\w)" if word else r"\{[{%]"
    found = re.search(wanted, code[0]) if code else None
    return found.start() + 1 if found else 1
