"""Sources on the hub: the hub's own client, on a server that answers as the hub does."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow
import pytest
import tiny
import yaml
from harnessrl.specs.mix import HubPlace
from harnessrl.trainer.data import fetch
from harnessrl.trainer.data.fetch import Found, UnavailableError, find
from huggingface_hub import constants
from pyarrow import parquet

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/rivers"


def row(n: int) -> dict[str, Any]:
    words = " ".join(f"w{n * k}" for k in range(1, 12))
    return {"id": f"t{n}", "prompt": words, "rubric": [{"text": f"names {n}", "points": 1.0}]}


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


@dataclass
class Hub:
    """One data set with its files; `asked` are the paths that the client asked for."""

    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=lambda: {"license": "cc-by-4.0"})
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        revisions = {f"/api/datasets/{REPO}/revision/{name}" for name in ("main", "v1", COMMIT)}
        if path in revisions:
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": REPO, "sha": COMMIT, "siblings": siblings, "cardData": self.card}
            return 200, json.dumps(info).encode(), {}
        _, _, name = path.partition(f"/datasets/{REPO}/resolve/{COMMIT}/")
        if name in self.files:
            data = self.files[name]
            return 200, data, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        kind = "RevisionNotFound" if "/revision/" in path and REPO in path else "RepoNotFound"
        return 404, b"{}", {"X-Error-Code": kind, "X-Error-Message": "there is no such thing"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    there = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            status, data, headers = there.answer(unquote(self.path.partition("?")[0]))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()

        def do_GET(self) -> None:
            there.asked.append(self.path)
            self.do_HEAD()
            self.wfile.write(there.answer(unquote(self.path.partition("?")[0]))[1])

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there.endpoint = f"http://127.0.0.1:{server.server_port}"
    url = there.endpoint + "/{repo_id}/resolve/{revision}/{filename}"  # both are made of HF_ENDPOINT
    monkeypatch.setattr(constants, "ENDPOINT", there.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield there
    server.shutdown()
    server.server_close()


def asked_for(*files: str, revision: str = "main", repo: str = REPO) -> Found:
    place = HubPlace(kind="hub", repo=repo, files=files, revision=revision)
    return find([place], [], Path("unused"))


def why_not(*files: str, **where: str) -> str:
    with pytest.raises(UnavailableError) as caught:
        asked_for(*files, **where)
    return str(caught.value)


def test_files_are_fetched_once_and_lie_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    hub.files = {
        "README.md": b"about",
        "data/train-00000.parquet": as_parquet([row(1)]),
        "data/train-00001.parquet": as_parquet([row(2)]),
        "test.jsonl": json.dumps(row(3)).encode(),
    }
    found = asked_for("data/train-*.parquet", "test.jsonl")
    assert [file.name for file in found.files] == [
        "train-00000.parquet",
        "train-00001.parquet",
        "test.jsonl",
    ]
    for file, name in zip(found.files, [*hub.files][1:], strict=True):
        assert file.read_bytes() == hub.files[name] and tmp_path / "hub" in file.parents
    assert (found.place, found.revision) == (f"hub {REPO}@main", COMMIT)
    assert found.stated_licence == "cc-by-4.0"
    assert not any("README" in path for path in hub.asked)
    n = sum("/resolve/" in path for path in hub.asked)
    assert asked_for("data/train-*.parquet", "test.jsonl") == found
    assert sum("/resolve/" in path for path in hub.asked) == n == 3


def test_a_revision_is_asked_for_and_its_commit_is_read(hub: Hub) -> None:
    hub.files = {"a.jsonl": b"{}"}
    found = asked_for("*.jsonl", revision="v1")
    assert (found.place, found.revision) == (f"hub {REPO}@v1", COMMIT)
    assert any(path.startswith(f"/api/datasets/{REPO}/revision/v1") for path in hub.asked)
    assert "RevisionNotFoundError" in why_not("*.jsonl", revision="v2")


@pytest.mark.parametrize(
    ("card", "stated"),
    [({}, None), ({"license": None}, None), ({"license": ["mit", "other"]}, "mit, other")],
)
def test_what_a_card_says_of_the_licence(card: dict[str, Any], stated: str | None, hub: Hub) -> None:
    hub.files, hub.card = {"a.jsonl": b"{}"}, card
    assert asked_for("a.jsonl").stated_licence == stated


def test_why_a_source_is_not_had(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = {"a.jsonl": b"{}"}
    assert why_not("*.parquet", "b.jsonl").endswith("the data set has no *.parquet, b.jsonl")
    assert "RepositoryNotFoundError" in why_not("a.jsonl", repo="owner/another")
    with pytest.raises(UnavailableError, match=r"not asked for \(--offline\)"):
        place = HubPlace(kind="hub", repo=REPO, files=("a.jsonl",))
        find([place], [], Path("unused"), offline=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "OfflineModeIsEnabled" in why_not("a.jsonl")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    fetch._hub_silence.cache_clear()
    assert "http://127.0.0.1:9 is not reached (ConnectError)" in why_not("a.jsonl")


def test_a_mix_of_the_hub_says_what_it_read(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"one.parquet": as_parquet([row(1), row(2)]), "two.jsonl": json.dumps(row(3)).encode()}
    place = {"kind": "hub", "repo": REPO, "files": ["*.parquet", "*.jsonl"]}
    mix = {
        "name": "m",
        "sources": {"s": {"converter": "tasks", "licence": "MIT", "places": [place]}},
        "domains": {"d": {"train": 3, "sources": {"s": 1}}},
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(mix))
    done = tiny.invoke("data", "build", tmp_path / "mix.yaml", "--out", tmp_path / "out", "--strict")
    assert done.exit_code == 0, done.output
    about = json.loads((tmp_path / "out" / "manifest.json").read_text())["sources"]["s"]
    told = {key: about[key] for key in ("place", "revision", "licence", "stated_licence", "train")}
    assert told == {
        "place": f"hub {REPO}@main",
        "revision": COMMIT,
        "licence": "MIT",
        "stated_licence": "cc-by-4.0",
        "train": 3,
    }
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in hub.files.items()}
    assert about["files"] == hashes
