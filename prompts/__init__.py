"""Prompt templates (Jinja2, one file each) and the function that renders them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import regex
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..specs.guidance import FIELDS, Shown, everything
from ..specs.harness import HarnessState
from ..specs.tasks import Criterion

#: Control tokens of common model families, as text: `<|im_end|>`, `</s>`, `[INST]`, ... (DeepSeek's have
#: full-width bars, U+FF5C).
_CONTROL = regex.compile(
    r"<[|\uFF5C][^<>|\uFF5C\s]{1,64}[|\uFF5C]>|</?(?:s|bos|eos|pad|unk)>|<(?:start|end)_of_turn>"
    r"|\[/?(?:INST|SYSTEM_PROMPT)\]"
)
WORD_JOINER = "\u2060"


def _inert(value: object) -> object:
    """Text in which no tokenizer finds a control token: an invisible character parts each of them.

    A server makes real control tokens of their text, and with them a response could end its turn of the
    conversation, whatever marks it stands between.
    """
    return _CONTROL.sub(_parted, value) if isinstance(value, str) else value


def _parted(match: regex.Match[str]) -> str:
    return match[0][0] + WORD_JOINER + match[0][1:]


@lru_cache(maxsize=2)
def _environment(is_role: bool = True) -> Environment:
    # Plain text, not HTML: nothing is escaped, and nothing in a value is ever run as a template.
    return Environment(
        loader=PackageLoader(__package__, "."),
        undefined=StrictUndefined,
        autoescape=False,
        finalize=_inert if is_role else None,
    )


def render(name: str, own: str | None = None, **values: object) -> str:
    """A question to a role: the template `prompts/NAME.md`, or the file `own` instead, with `values`.

    Values are texts of others: their control tokens are made inert. A value that the template needs and
    lacks is an error. Raises `jinja2.TemplateError` or `OSError`.
    """
    template = _environment().get_template(f"{name}.md") if own is None else _own(own)
    return template.render(**values).strip()


@lru_cache(maxsize=8)
def _own(path: str) -> Template:
    return _environment().from_string(Path(path).read_text(encoding="utf-8"))


def fullest_prompt(state: HarnessState, task_id: str) -> str:
    """The longest user message that a harness can make of a task."""
    shown = everything(state.of(task_id).guidance, state.rubric(task_id))
    return guided_prompt(state.tasks[task_id].prompt, shown)


def check_templates(
    propose: str | None = None,
    judge: str | None = None,
    batch: str = "",
    oracle: str | None = None,
    kind: str = "",
    attribute: str | None = None,
) -> None:
    """Render every template, or a person's own in its place, with everything it may hold.

    Raises `jinja2.TemplateError` or `OSError`.
    """
    every = tuple(Shown(field, ("a line",), ("a line",)) for field in FIELDS)
    guided_prompt("a prompt", every)
    quoted = {"fence": "[mark]", "prompt": "a prompt", "response": "a response"}
    one, every_one = (None, judge) if batch == "rubric" else (judge, None)
    render("judge", one, criterion="a criterion", **quoted)
    render("judge_rubric", every_one, criteria=["a criterion"], **quoted)
    compare, grade = (None, oracle) if kind == "reference" else (oracle, None)
    render("compare", compare, fence="[mark]", prompt="a prompt", first="one", second="another")
    render("grade", grade, reference="a good response", **quoted)
    render("extract", what="a part", **quoted)
    levels = [{"low": 1, "high": 5, "text": "poor"}, {"low": 6, "high": 10, "text": "good"}]
    graded = {"title": "a name", "criterion": "a criterion", "reference": "a good response"}
    render("level", levels=levels, **graded, **quoted)
    case = {
        "fence": "[mark]",
        "prompt": "a prompt",
        "rubric": (Criterion(text="a criterion", points=1.0),),
        "guidance": ["a line"],
        "sentence": "a sentence",
        "responses": [{"reward": "0.50", "quality": "0.50", "text": "a response"}],
        "refused": ["a decision"],
        "similar": ["a decision"],
        "interfaces": ("p", "g", "c"),
    }
    render("attribute", attribute, pairs=[("a class", 1)], rival="a sentence", **case)
    for judged in (True, False):
        render("propose", propose, most_points="3", judged=judged, **case)


def guided_prompt(prompt: str, shown: Sequence[Shown]) -> str:
    """The user message of a rollout: `prompt` alone, or with the guidance it carries.

    Nothing is changed in it: the policy is not asked at all with a control token in its prompt.
    """
    if not shown:
        return prompt
    template = _environment(is_role=False).get_template("guidance.md")
    return template.render(prompt=prompt, shown=shown).strip()
