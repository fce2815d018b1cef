"""Prompt templates (Jinja2, one file each), what renders them, and what checks them."""

from .check import check_templates
from .inert import WORD_JOINER
from .rendering import fingerprint, fullest_prompt, guided_prompt, render

__all__ = ["WORD_JOINER", "check_templates", "fingerprint", "fullest_prompt", "guided_prompt", "render"]
