"""Templates with values put into them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pydantic import BaseModel

from ..specs.errors import did_you_mean
from ..specs.guidance import Shown, everything
from ..specs.harness import HarnessState
from .inert import inert


class _Undefined(StrictUndefined):
    """What a template names and nobody gives it: an error that says what there is instead."""

    @property
    def _undefined_message(self) -> str:
        has, name = self._undefined_obj, str(self._undefined_name)
        names = has.keys() if isinstance(has, dict) else getattr(type(has), "model_fields", ())
        if not isinstance(has, dict | BaseModel):
            return str(super()._undefined_message)
        return f"it has no {name}{did_you_mean(name, names)}; allowed: {', '.join(names)}"


@lru_cache(maxsize=2)
def environment(for_roles: bool = True) -> Environment:
    """Where the templates are found, and how they are read."""
    # Plain text, not HTML: nothing is escaped, and nothing in a value is ever run as a template.
    return Environment(
        loader=PackageLoader(__package__, "."),
        undefined=_Undefined,
        autoescape=False,
        finalize=inert if for_roles else None,
    )


def render(name: str, own: str | None = None, **values: object) -> str:
    """A question to a role: the template `prompts/NAME.md`, or the file `own` instead, with `values`.

    Values are texts of others: their control tokens are made inert. A value that the template needs and
    lacks is an error. Raises `jinja2.TemplateError`, `OSError`, and with `own` whatever its expressions
    raise (`check_templates` finds that out beforehand).
    """
    template = environment().get_template(f"{name}.md") if own is None else _own(own)
    return template.render(**values).strip()


def fingerprint(name: str, own: str | None = None) -> str:
    """Changes with the template that `render` takes: an answer to other words is no answer to these.

    Raises `OSError`.
    """
    if own is None:
        text = resources.files(__package__).joinpath(f"{name}.md").read_text(encoding="utf-8")
    else:
        text = Path(own).read_text(encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@lru_cache(maxsize=8)
def _own(path: str) -> Template:
    """A person's template; its lines are known to tracebacks under the name of its file."""
    given = environment()
    code = given.compile(Path(path).read_text(encoding="utf-8"), filename=path)
    return Template.from_code(given, code, given.make_globals(None))


def fullest_prompt(state: HarnessState, task_id: str) -> str:
    """The longest user message that a harness can make of a task."""
    shown = everything(state.of(task_id).guidance, state.rubric(task_id))
    return guided_prompt(state.tasks[task_id].prompt, shown)


def guided_prompt(prompt: str, shown: Sequence[Shown]) -> str:
    """The user message of a rollout: `prompt` alone, or with the guidance it carries.

    Nothing is changed in it: the policy is not asked at all with a control token in its prompt.
    """
    if not shown:
        return prompt
    template = environment(for_roles=False).get_template("guidance.md")
    return template.render(prompt=prompt, shown=shown).strip()
