"""A rubric for role-play sets that carry none (RoleBench): what any judge of the role can see."""

from __future__ import annotations

from ...specs.ood import OodTask
from ...specs.tasks import Criterion, Task


def role_rubric(task: Task) -> tuple[Criterion, ...]:
    """Criteria for a task whose source names the role that is to be played; none for others."""
    role = task.origin.more.get("role") if isinstance(task, OodTask) and task.origin else None
    if not isinstance(role, str):
        return ()
    return (
        Criterion(text=f"The response speaks as {role} from its first to its last word.", points=2.0),
        Criterion(text="The response answers what was asked.", points=2.0),
        Criterion(text=f"Its tone and choice of words are such as {role} is known for.", points=2.0),
        Criterion(text=f"It says something that only somebody in {role}'s place would say.", points=1.0),
        Criterion(
            text="It calls itself an AI, a model or an assistant, or says that it plays a role.",
            points=-3.0,
        ),
        Criterion(text=f"It contradicts what is generally known about {role}.", points=-2.0),
    )
