"""How long a full-size mix takes to build, and how much memory.

20,000 rows in the schemas of the real data sets, made by repeating real rows with other words in their
prompts, are written to files; `harnessrl data build` then makes the paper's quotas of them in a process
of its own.

    python benchmarks/data_build.py [FOLDER WITH THE REAL ROWS]

Bars: 2 minutes, 2 GiB.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]

SOURCES = {
    # name: (real file, copies wanted, converter)
    "healthbench": ("healthbench.jsonl", 6000, "healthbench"),
    "researchqa": ("researchqa_valid.json", 5000, "researchqa"),
    "verinstruct": ("verinstruct_verl.jsonl", 3000, "verinstruct"),
    "ifeval": ("ifeval_input_data.jsonl", 3000, "ifeval"),
    "longwriter": ("longbench_write.jsonl", 3000, "longwriter-zero"),
}
DOMAINS = {
    "medical": (3000, 250, ["healthbench"]),
    "science": (2000, 250, ["researchqa"]),
    "writing": (1200, 250, ["longwriter"]),
    "role-play": (1200, 250, ["verinstruct"]),
    "instruction-following": (1200, 250, ["ifeval"]),
}
OOD = {
    "medqa": "medqa_us_4options_test.jsonl",
    "writingbench": "writingbench.jsonl",
    "ifbench": "ifbench_test.jsonl",
}


def rows_of(path: Path) -> list[Row]:
    if path.suffix == ".json":
        return list(json.loads(path.read_text()))
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def perturbed(text: str, words: list[str], rng: random.Random) -> str:
    """A text of the same length with half of its words drawn from all prompts."""
    return " ".join(word if rng.random() < 0.5 else rng.choice(words) for word in text.split())


def spoken(row: Row, change: Callable[[str], str], n: int) -> Row:
    """The row with another prompt and another id; a twentieth of them are near-duplicates."""
    row = json.loads(json.dumps(row))
    for key in ("prompt_id", "id", "key"):
        if key in row:
            row[key] = type(row[key])(str(n)) if key != "id" else f"q{n}"
    if "query" in row:
        row["query"] = change(row["query"])
    elif isinstance(row["prompt"], str):
        row["prompt"] = change(row["prompt"])
    else:
        for message in row["prompt"]:
            message["content"] = change(message["content"]) or "?"
    if "extra_info" in row:
        row["extra_info"]["original_id"] = n
    if "type" in row and "length" in row:
        del row["type"]
    return row


def synthesise(data: Path, folder: Path) -> int:
    """Write the files of every source; returns how many rows there are."""
    rng, total = random.Random(0), 0
    for name, (file, copies, _) in SOURCES.items():
        real = rows_of(data / file)
        words = [
            w for row in real for w in json.dumps(row, ensure_ascii=False).split()[:400] if w.isalpha()
        ]
        with (folder / f"{name}.jsonl").open("w") as out:
            for n in range(copies):
                near = n % 20 == 0
                out.write(
                    json.dumps(
                        spoken(
                            real[n % len(real)],
                            lambda text, near=near, words=words: (
                                text + "." if near else perturbed(text, words, rng)
                            ),
                            n,
                        ),
                        ensure_ascii=False,
                    )
                    + "\n"
                )
        total += copies
    return total


def mix(data: Path) -> Row:
    def local(file: str, converter: str) -> Row:
        return {"converter": converter, "licence": "MIT", "places": [{"kind": "local", "files": [file]}]}

    return {
        "name": "full-size",
        "sources": {
            **{name: local(f"{name}.jsonl", converter) for name, (_, _, converter) in SOURCES.items()},
            **{name: local(str(data / file), name) for name, file in OOD.items()},
        },
        "domains": {
            name: {"train": train, "held_out": held_out, "sources": dict.fromkeys(sources, 1)}
            for name, (train, held_out, sources) in DOMAINS.items()
        },
        "ood": {name: {"source": name, "domain": "medical", "tasks": 40} for name in OOD},
    }


def main() -> int:
    data = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT.parent / "shared" / "data").resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = synthesise(data, folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        (folder / "mix.yaml").write_text(yaml.safe_dump(mix(data)))
        command = [
            sys.executable,
            "-m",
            "harnessrl.trainer.cli",
            "data",
            "build",
            str(folder / "mix.yaml"),
        ]
        command += ["--folder", name, "--offline", "--out", str(folder / "out")]
        start = time.perf_counter()
        done = subprocess.run(command, text=True, capture_output=True, env=dict(os.environ))
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(done.stdout + done.stderr)
        if done.returncode:
            return 1
        kept = sum(
            1 for file in folder.glob("out/*.jsonl") if file.stem != "left_out" for _ in file.open()
        )
    print(f"{rows:,} rows ({size / 2**20:.0f} MiB) read, {kept:,} tasks kept")
    print(f"{seconds:.1f} s (bar: 120), peak memory {peak:.2f} GiB (bar: 2)")
    return 0 if seconds < 120 and peak < 2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
