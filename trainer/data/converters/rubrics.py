"""Criteria in words: HealthBench, ResearchQA, RubricHub, VerInstruct, and any file in verl's form."""

from __future__ import annotations

import json
from typing import Any

from ....specs.checks import IFEVAL_IDS, IfevalCheck
from ....specs.tasks import Criterion, TrainTask
from .common import Converter, Row, RowError, content_id, make, read_criterion, read_messages

# --- HealthBench (arXiv 2505.08775) ---------------------------------------------------------------


def _healthbench(row: Row, key: str | None) -> TrainTask:
    """Signed points, tags `axis:...`; the physicians' completion, where there is one, as reference."""
    ideal = row.get("ideal_completions_data") or {}
    return make(
        TrainTask,
        "healthbench",
        row["prompt_id"],
        "medical",
        row["prompt"],
        [read_criterion(entry) for entry in row["rubrics"]],
        canary=row.get("canary"),
        more={
            "example_tags": row.get("example_tags"),
            "ideal_completions_group": ideal.get("ideal_completions_group"),
            "ideal_completions_ref_completions": ideal.get("ideal_completions_ref_completions"),
        },
        reference=ideal.get("ideal_completion") or None,
    )


# --- ResearchQA -----------------------------------------------------------------------------------


def _researchqa(row: Row, key: str | None) -> TrainTask:
    """Items are questions about the response, all of one weight; citations are kept with the origin."""
    rubric = [
        Criterion(
            text=item["rubric_item"],
            points=1.0,
            tags=tuple(f"type:{kind}" for kind in item["type"]) or None,
        )
        for item in row["rubric"]
    ]
    cited = {
        item["rubric_item"]: item["citation_metadata"]
        for item in row["rubric"]
        if item.get("citation_metadata")
    }
    about = {name: row.get(name) for name in ("general_domain", "subdomain", "field", "date")}
    return make(
        TrainTask,
        "researchqa",
        row["id"],
        "science",
        row["query"],
        rubric,
        more={**about, "citation_metadata": cited or None},
    )


# --- verl: RubricHub, VerInstruct, RuscaRL's files ------------------------------------------------

#: RubricHub's `data_source` to our domains.
RUBRICHUB_DOMAINS = {
    "medical": "medical",
    "science": "science",
    "writing": "writing",
    "chat": "role-play",
    "instruction_following": "instruction-following",
}


def _rubrichub(row: Row, key: str | None) -> TrainTask:
    topic = str(row["data_source"]).lower()
    if topic not in RUBRICHUB_DOMAINS:
        allowed = ", ".join(RUBRICHUB_DOMAINS)
        raise RowError(f"data_source {row['data_source']!r} is none of RubricHub's: {allowed}")
    return _verl_task(row, f"rubrichub-{topic}", RUBRICHUB_DOMAINS[topic], "rubrichub")


def _verinstruct(row: Row, key: str | None) -> TrainTask:
    return _verl_task(row, "verinstruct", "instruction-following", "verinstruct")


def _verl(row: Row, key: str | None) -> TrainTask:
    source = str(row.get("data_source") or "verl")
    return _verl_task(row, source, str(row.get("ability") or "general"), source)


def _verl_task(row: Row, prefix: str, domain: str, source: str) -> TrainTask:
    rubric, without_points = _verl_rubric(row["reward_model"]["rubrics"])
    name = _verl_name(row.get("extra_info") or {}, row["prompt"], rubric)
    truth = row["reward_model"].get("ground_truth")
    return make(
        TrainTask,
        source,
        name or content_id(row["prompt"], row["reward_model"]["rubrics"]),
        domain,
        row["prompt"],
        rubric,
        more={
            "data_source": row.get("data_source"),
            "ability": row.get("ability"),
            "without_points": without_points or None,
        },
        prefix=prefix,
        reference=truth if isinstance(truth, str) and truth.strip() else None,
    )


def _verl_name(extra: Row, prompt: Any, rubric: list[Criterion]) -> str | None:
    """`original_id`; or `index`, which begins anew in every file, with a hash of what the row says.

    The hash is of what was read, so that parquet (which fills in nulls) and JSON give the same one.
    """
    if (name := extra.get("original_id")) is not None:
        return str(name)
    if (index := extra.get("index")) is None:
        return None
    said = content_id(read_messages(prompt)[0], [(c.text, c.points) for c in rubric])
    return f"{index}-{said}"


def _verl_rubric(entries: list[Row]) -> tuple[list[Criterion], list[str]]:
    """The criteria, and the texts of those without points, which can earn and cost nothing.

    RubricHub clamps points to 0..10, so what was a penalty there has none left.
    """
    rubric, without_points = [], []
    for entry in entries:
        tags = entry.get("tags")
        if float(entry["points"]) == 0.0:
            without_points.append(str(entry["criterion"]))
        elif isinstance(tags, dict) and tags.get("verifier") == "rule":
            rubric.append(_rule(entry))
        else:
            rubric.append(read_criterion(entry))
    return rubric, without_points


def _rule(entry: Row) -> Criterion:
    """A criterion that names an IFEval instruction. Its `function` names code, and is not used."""
    name = str(entry["criterion"])
    if name not in IFEVAL_IDS:
        raise RowError(f"unknown rule {name!r}; known are IFEval's instructions")
    check = IfevalCheck(kind="ifeval", id=name, args=_rule_args(name, entry["tags"].get("parameters")))
    return Criterion(text=f"follows the instruction {name}", points=float(entry["points"]), check=check)


def _rule_args(name: str, given: Any) -> dict[str, Any]:
    """A rule's arguments, given as a mapping or as its JSON. Whole numbers come as floats there."""
    try:
        args = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except ValueError as error:
        raise RowError(f"the parameters of rule {name!r} are no JSON: {given[:120]!r}") from error
    if not isinstance(args, dict):
        raise RowError(f"the parameters of rule {name!r} are no mapping: {str(args)[:120]!r}")
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in args.items()}
    return {key: value for key, value in whole.items() if value is not None}


def _is_verl(row: Row) -> bool:
    return isinstance(row.get("reward_model"), dict) and "rubrics" in row["reward_model"]


def _source_of(row: Row) -> str:
    return str(row.get("data_source")).lower() if _is_verl(row) else ""


HEALTHBENCH = Converter(
    "healthbench", "medical", _healthbench, lambda row: {"prompt_id", "prompt", "rubrics"} <= row.keys()
)
RESEARCHQA = Converter(
    "researchqa", "science", _researchqa, lambda row: {"query", "rubric", "general_domain"} <= row.keys()
)
RUBRICHUB = Converter(
    "rubrichub",
    "general",
    _rubrichub,
    lambda row: "Rubrics" in row and _source_of(row) in RUBRICHUB_DOMAINS,
)
VERINSTRUCT = Converter(
    "verinstruct", "instruction-following", _verinstruct, lambda row: _source_of(row) == "verinstruct"
)
VERL = Converter("verl", "general", _verl, _is_verl)
