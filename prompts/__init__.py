"""Prompt templates (Jinja2, one file each) and the function that renders them."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Plain text, not HTML: nothing is escaped, and nothing in a value is ever run as a template.
    return Environment(
        loader=PackageLoader(__package__, "."), undefined=StrictUndefined, autoescape=False
    )


def render(name: str, **values: object) -> str:
    """The template `prompts/NAME.md` with `values`; a value it needs and lacks is an error.

    Raises `jinja2.UndefinedError` or `jinja2.TemplateNotFound`.
    """
    return _environment().get_template(f"{name}.md").render(**values).strip()


def guided_prompt(prompt: str, checklist: tuple[str, ...]) -> str:
    """The user message of a rollout that carries guidance."""
    return render("guidance", prompt=prompt, checklist=checklist)
