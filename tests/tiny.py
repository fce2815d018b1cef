"""A random half-million-parameter policy, a run that fits it, and how tests start `harnessrl`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

#: What the byte-level BPE is trained on; a random model then writes pieces of these words.
CORPUS = "The quick brown fox jumps over the lazy dog. Please write a clear answer to the question. "
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: It thinks unless it is told not to, as Qwen3.5's does: both ways the response goes on from there.
THOUGHT, NO_THOUGHT = "<think>\n", "<think>\n\n</think>\n\n"
THINKING_TEMPLATE = CHAT_TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}{% endif %}"
)


def thinking(model: Path, folder: Path) -> Path:
    """A copy of a model folder, with a chat template that has the model think."""
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)
    return folder


def build_tiny_model(folder: Path) -> Path:
    """Write a random 2-layer Llama with a byte-level tokenizer as a model folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([CORPUS] * 8, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    # Several end tokens, as real models have them; a random model then really ends some responses.
    ends = [tokenizer.eos_token_id, *bpe.encode(".?!").ids]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# Random text has letters, pieces of words and few real words: these checks and concepts vary on it.
TASKS_YAML = """\
shared_pool:
  criteria:
    - {text: The letter o occurs., points: 2, check: {kind: regex, pattern: o}}
    - {text: The letter z occurs., points: 2, check: {kind: regex, pattern: z}}
    - {text: Has at least five words., points: 2, check: {kind: words, min: 5}}
    - {text: Has at most two words., points: 2, check: {kind: words, max: 2}}
  checklists:
    - [use short words, name the fox]
    - [write many words]
train:
  - id: fox
    domain: animals
    prompt: "Please write a clear answer: why does the fox jump?"
    rubric: &rubric
      - {text: The letter e occurs., points: 1, check: {kind: regex, pattern: e}}
      - {text: Has three words or more., points: 2, check: {kind: words, min: 3}}
      - {text: A digit occurs., points: -1, check: {kind: regex, pattern: '\\d'}}
    quality: &quality
      topic: [[t, q], [o, b], [a, f], [l, d], [w, j], [s, c]]
      complete_words: 3
  - id: dog
    domain: animals
    prompt: Is the dog lazy?
    rubric: *rubric
    quality: *quality
  - id: letters
    domain: writing
    prompt: |-
      Write letters.
      Any letters.
    rubric:
      - {text: The letter a occurs., points: 1, check: {kind: regex, pattern: a}}
      - {text: The letter s occurs., points: 1, check: {kind: regex, pattern: s}}
    quality: *quality
  - id: words
    domain: writing
    prompt: Write words.
    rubric: *rubric
    quality: *quality
held_out:
  - id: quick
    domain: writing
    prompt: How quick is the fox?
    rubric: *rubric
    quality: *quality
"""

#: Generous to every candidate, so that a few steps see accepted and rejected ones.
SPEC_YAML = """\
name: tiny
seed: 3
tasks:
  files: [texts/animals.yaml]
roles:
  policy: {{model: {model}}}
interfaces:
  p: {{min_effective_tasks: 1.5}}
engine:
  kind: local
  steps: {steps}
  tasks_per_step: 2
  group_size: 4
  max_new_tokens: 10
  max_prompt_tokens: 160
  learning_rate: 1e-3
  threads: 1
evolver:
  every: 1
  tasks_per_look: 2
  alpha: 0.45
  attribute: {{min_groups: 1, healthy_signal: 1.0}}
  critic: {{rollouts: 8, extended_rollouts: 16, margin: 0.0}}
logging:
  folder: {runs}
  checkpoint_every: 2
  probe_samples: 2
"""


@dataclass(frozen=True)
class Paths:
    """A folder with a spec and its tasks; `runs` is where its run folders go."""

    folder: Path
    spec: Path
    runs: Path

    @property
    def run(self) -> Path:
        """The first run folder."""
        return self.runs / "tiny"


@dataclass(frozen=True)
class Finished:
    """A run that came to its end, and what it printed."""

    spec: Path
    run: Path
    output: str


#: A task that is set apart for validation.
APART_YAML = """
validation:
  - id: owl
    domain: animals
    prompt: Write about an owl.
    rubric:
      - {text: The letter e occurs., points: 1, check: {kind: regex, pattern: e}}
      - {text: The letter w occurs., points: 1, check: {kind: regex, pattern: w}}
"""


def write_spec(folder: Path, model: Path | str, steps: int = 6) -> Paths:
    """Write `tiny.yaml` and its tasks into `folder`."""
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    (folder / "texts" / "animals.yaml").write_text(TASKS_YAML)
    spec = folder / "tiny.yaml"
    spec.write_text(SPEC_YAML.format(model=model, steps=steps, runs=folder / "runs"))
    return Paths(folder, spec, folder / "runs")


# --- run folders ----------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(value: Any) -> Any:
    """`value` without what a clock wrote into it: every key `seconds`."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key != "seconds"}
    if isinstance(value, list):
        return [timeless(item) for item in value]
    return value


def surviving(path: Path) -> list[dict[str, Any]]:
    """A log's events that no later resume voided, without the resumes themselves, timeless."""
    out: list[dict[str, Any]] = []
    for event in rows(path):
        if event["type"] == "resumed":
            step: int = event["step"]
            void = next((n for n, e in enumerate(out) if e["step"] >= step), len(out))
            del out[void:]  # a look beside training is logged after its step
        else:
            out.append(timeless(event))
    return out


def content(run: Path) -> dict[str, Any]:
    """Everything a run folder says that must repeat: all of it, apart from what clocks wrote."""
    (checkpoint,) = (run / "checkpoints").iterdir()
    return {
        "metrics": [timeless(row) for row in rows(run / "metrics.jsonl")],
        "events": surviving(run / "events.jsonl"),
        "rollouts": {p.name: rows(p) for p in sorted((run / "rollouts").iterdir())},
        "harness": {p.name: p.read_text() for p in sorted((run / "harness").iterdir())},
        "checkpoint": checkpoint.name,
        "weights": (checkpoint / "policy" / "model.safetensors").read_bytes(),
        "optimizer": (checkpoint / "optimizer" / "adamw.pt").read_bytes(),
        "controller": timeless(json.loads((checkpoint / "controller.json").read_text())),
        "threads": threads(run),
    }


def threads(run: Path) -> list[str]:
    """The evolver's threads in LangGraph's store; [] for a run without an evolver."""
    if not (run / "graph.sqlite").exists():
        return []
    with contextlib.closing(sqlite3.connect(run / "graph.sqlite")) as connection:
        found = connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1")
        return [thread for (thread,) in found]


def data_file(name: str) -> Path:
    """A file of real rows. They lie beside the checkout, or where HARNESSRL_DATA says."""
    beside = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("HARNESSRL_DATA") or beside)
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in {folder}; name a folder that has it in HARNESSRL_DATA")
    return folder / name


# --- processes ------------------------------------------------------------------------------------


def command(*args: str | Path) -> list[str]:
    """The command line of `harnessrl` in this environment."""
    start = "from harnessrl.trainer.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, args)]


def invoke(*args: str | Path) -> Result:
    """Run `harnessrl` in this process (no second import of torch)."""
    from harnessrl.trainer.cli import app

    return CliRunner().invoke(app, [str(arg) for arg in args])


def harnessrl(
    *args: str | Path, cwd: Path | None = None, timeout: float = 240, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `harnessrl` to its end in a process of its own."""
    return subprocess.run(
        command(*args),
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def start(*args: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start `harnessrl` and leave it running."""
    return subprocess.Popen(
        command(*args), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str], timeout: float = 240) -> None:
    """Poll until `ready()`; fails if the process ends first or the time is up."""
    until = time.monotonic() + timeout
    while not ready():
        if process.poll() is not None:
            output = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"ended too early with {process.returncode}:\n{output}")
        if time.monotonic() > until:
            process.kill()
            raise AssertionError("nothing happened in time")
        time.sleep(0.005)


def n_lines(path: Path) -> int:
    """Lines of a file that may not be there yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def join(lines: Sequence[str]) -> str:
    """Lines as one file's text."""
    return "".join(line + "\n" for line in lines)
