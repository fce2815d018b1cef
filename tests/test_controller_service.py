"""The controller service: what a run's workers may rely on, over its real API, with its real controller.

Nothing evolves in these runs: the frozen policy's vLLM server is never started (tests/engines has it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from harnessrl.specs.loader import load_run_spec
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.openrlhf import client as client_module
from harnessrl.trainer.openrlhf import service as service_module
from harnessrl.trainer.openrlhf.client import AsyncClient, Client, ControllerError
from harnessrl.trainer.openrlhf.serve import ExposedError, main, serve
from harnessrl.trainer.openrlhf.wire import (
    CONTROLLER_ENV,
    FINISHED,
    TOKEN_ENV,
    ClaimReply,
    SlotSample,
    StepReport,
)
from harnessrl.trainer.provenance import provenance
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint
from harnessrl.trainer.stored import write_start

fake_vllm = Path(__file__).with_name("fake_vllm.py")
TOKEN = "a-token-of-a-test"
STEPS, SLOTS, GROUP = 3, 2, 4
REPORT = {"loss": 0.5, "grad_norm": 1.0, "clip_share": 0.0, "seconds": {"rollout": 1.0}}

SPEC = """
name: served
seed: 3
tasks: {{files: [texts/animals.yaml]}}
roles: {{policy: {{model: {model}}}}}
interfaces:
  p: {{evolve: false, redraws: {redraws}}}
  g: {{evolve: false, mismatch: ignore, start: [{{field: skill, lines: [be brief], share: 0.5}}]}}
  c: {{evolve: false}}
engine:
  {{kind: openrlhf, device: cpu, steps: 3, tasks_per_step: 2, group_size: 4,
    max_new_tokens: 10, max_prompt_tokens: 160}}
logging: {{folder: runs, probe_samples: 0}}
"""


#: Every service is a fork of one process that has loaded its code: that takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["harnessrl.trainer.openrlhf.serve", "transformers.models.auto"])


def run_service(argv: list[str], log: Path, env: dict[str, str]) -> None:
    """The command, in a process of its own."""
    os.environ |= env
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ[TOKEN_ENV] = TOKEN
    service_module.HOLD = 2.0  # a test waits until a request is let go
    sys.argv = ["serve", *argv]
    main()


class Service:
    """A run's service in a process of its own, and a client of it."""

    def __init__(self, root: Path, env: dict[str, str] | None = None) -> None:
        self.run = RunFolder(root)
        self.env = env or {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=60.0,
        )
        self.process: Any = None  # multiprocessing's

    def start(self, *args: str) -> None:
        """Start it (again), and wait until it answers."""
        argv = [str(self.run.root), "--port", str(self.port), *args]
        log = self.run.root / "service.log"
        self.process = FORKS.Process(target=run_service, args=(argv, log, self.env))
        self.process.start()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if self.http.get("/health").status_code == 200:
                    return
            assert self.process.is_alive(), (self.run.root / "service.log").read_text()
            time.sleep(0.05)
        raise AssertionError((self.run.root / "service.log").read_text())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, by default without a chance to tidy up."""
        os.kill(self.process.pid, number)
        self.process.join(timeout=30)
        assert not self.process.is_alive()

    def ask(self, method: str, path: str, body: Any = None, expect: int = 200) -> Any:
        """A request, asked again while the service is busy."""
        for _ in range(300):
            reply = self.http.request(method, path, json=body)
            if reply.status_code in (202, 503):
                time.sleep(0.05)
                continue
            assert reply.status_code == expect, (path, reply.status_code, reply.text)
            return reply.json()
        raise AssertionError(f"{path}: still busy")

    def claim(self, step: int, slot: int, sample: int, attempt: int = 0, expect: int = 200) -> Any:
        """What a rollout is."""
        where = {"step": step, "slot": slot, "sample": sample, "attempt": attempt}
        return self.ask("POST", "/v1/claim", where, expect)

    def submit(
        self, step: int, slot: int, sample: int, text: str, attempt: int = 0, expect: int = 200
    ) -> Any:
        """Hand a rollout in."""
        ids = list(range(len(text.split())))
        where = {"step": step, "slot": slot, "sample": sample, "attempt": attempt}
        body = {**where, "text": text, "token_ids": ids, "finished": True}
        return self.ask("POST", "/v1/submit", body, expect)

    def roll_out(self, step: int, but: tuple[tuple[int, int], ...] = ()) -> None:
        """Claim and submit a whole step; its texts depend on where they stand."""
        for slot in range(SLOTS):
            for sample in range(GROUP):
                if (slot, sample) not in but:
                    self.claim(step, slot, sample)
                    self.submit(step, slot, sample, text_of(step, slot, sample))

    def take(self, step: int) -> Any:
        """A whole step; its advantages."""
        self.roll_out(step)
        found = self.ask("GET", f"/v1/steps/{step}/advantages")
        self.ask("POST", f"/v1/steps/{step}/done", REPORT)
        return found


def text_of(step: int, slot: int, sample: int) -> str:
    """A response of so many words."""
    return " ".join(
        ["the", "lazy", "dog", "sees", str(step), "a", "fox", "so"][: 1 + (slot + 2 * sample) % 8]
    )


def command(run: RunFolder, *args: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, to its end."""
    words = [sys.executable, "-m", "harnessrl.trainer.openrlhf.serve", str(run.root), *args]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.fixture
def root(tmp_path: Path, tiny_model: Path) -> Path:
    """A run folder that has not begun."""
    return make_run(tmp_path / "one", tiny_model)


def make_run(
    folder: Path,
    model: Path,
    changes: dict[str, str] | None = None,
    redraws: int = 0,
    probe: bool = False,
) -> Path:
    tiny.write_spec(folder, model)
    spec = SPEC.format(model=model, redraws=redraws)
    for old, new in (changes or {}).items():
        assert spec.count(old) == 1, old
        spec = spec.replace(old, new)
    (folder / "served.yaml").write_text(spec)
    loaded = load_run_spec(folder / "served.yaml", None, {})
    run = RunFolder(folder / "run")
    run.root.mkdir()
    write_start(run, loaded.spec, load_tasks(loaded), provenance(3, "", probe=probe))
    return run.root


@pytest.fixture
def service(root: Path) -> Iterator[Service]:
    """A service that runs."""
    service = Service(root)
    service.start()
    yield service
    service.process.kill()
    service.process.join()


def test_a_whole_run(service: Service) -> None:
    for step in range(STEPS):
        state = service.ask("GET", "/v1/state")
        assert (state["steps_done"], state["steps"]) == (step, STEPS)
        found = service.take(step)
        assert len(found["advantages"]) == SLOTS
        for row, rewards in zip(found["advantages"], found["rewards"], strict=True):
            assert len(row) == len(rewards) == GROUP
            assert abs(sum(row)) < 1e-6
        assert found["export"] is False
    service.ask("POST", "/v1/finish", {"policy": "nowhere"})
    rows = tiny.rows(service.run.metrics)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["loss"] == 0.5
    assert rows[0]["seconds"]["rollout"] == 1.0
    assert rows[-1]["rollouts"]["train"] == STEPS * SLOTS * GROUP
    assert tiny.rows(service.run.events)[-1]["type"] == "run_finished"
    assert service.run.report.exists()
    service.claim(STEPS, 0, 0, expect=409)  # there is no step more
    service.ask("GET", f"/v1/steps/{STEPS}/advantages", expect=409)
    service.kill(signal.SIGTERM)
    # Finished is finished: whoever starts it again is told so, and nothing is touched.
    before = {path: path.read_bytes() for path in service.run.root.rglob("*") if path.is_file()}
    for args in (["--check"], ["--resume"], []):
        again = command(service.run, *args)
        assert again.returncode == FINISHED, again.stderr
        assert f"{service.run.root} is finished already; its report: " in again.stderr
    assert before == {path: path.read_bytes() for path in service.run.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("args", [["--check"], ["--resume"]])
def test_a_finished_run_gets_the_report_that_its_controller_did_not_come_to(
    args: list[str], service: Service
) -> None:
    for step in range(STEPS):
        service.take(step)
    service.run.report.mkdir()  # nothing can be written there
    service.ask("POST", "/v1/finish", {"policy": "nowhere"}, expect=410)
    service.kill(signal.SIGTERM)
    failed = command(service.run, *args)
    assert failed.returncode == 2 and "report.html" in failed.stderr  # 1 is Python's: it cannot run it
    service.run.report.rmdir()
    again = command(service.run, *args)
    assert again.returncode == FINISHED, again.stderr
    assert service.run.report.read_text().strip().startswith("<!doctype html>")


def test_what_there_is_to_serve_can_be_asked(service: Service) -> None:
    assert command(service.run, "--check").returncode == 0  # it runs, or could go on
    service.run.spec.write_text("name: 1\n")
    damaged = command(service.run, "--check")
    assert damaged.returncode == 2 and "spec.yaml" in damaged.stderr


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"grad_norm": math.inf}, "grad_norm is inf"),
        ({"grad_norm": -1.0}, "grad_norm is nan"),  # DeepSpeed's word for NaN and infinite
        ({"loss": math.nan, "kl": math.nan}, "loss is nan, kl is nan"),
    ],
)
def test_a_step_that_is_no_number_ends_the_run(
    wrong: dict[str, float], says: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.take(0)
    service.roll_out(1)
    service.ask("GET", "/v1/steps/1/advantages")
    client = trainer_client(service, monkeypatch)
    with pytest.raises(ControllerError, match=f"HTTP 410.*step 1 .*{says}"):
        client.step_done(1, StepReport(**{**REPORT, **wrong}))  # type: ignore[arg-type]
    assert [row["step"] for row in tiny.rows(service.run.metrics)] == [0]
    assert not any(row["step"] == 1 for row in tiny.rows(service.run.events))


def test_a_proxy_has_nothing_to_do_with_the_controller(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_module, "PATIENCE", 1.0)
    assert trainer_client(service, monkeypatch).state().steps == STEPS
    claim = asyncio.run(AsyncClient().claim(SlotSample(step=0, slot=0, sample=0)))
    assert claim.task_id == service.claim(0, 0, 0)["task_id"]


def trainer_client(service: Service, monkeypatch: pytest.MonkeyPatch) -> Client:
    """As OpenRLHF's processes talk to the service."""
    monkeypatch.setenv(CONTROLLER_ENV, str(service.http.base_url))
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    return Client()


def test_claims_say_what_a_rollout_is_and_repeat(service: Service) -> None:
    claims = [[service.claim(0, slot, i) for i in range(GROUP)] for slot in range(SLOTS)]
    again = [[service.claim(0, slot, i) for i in reversed(range(GROUP))][::-1] for slot in range(SLOTS)]
    assert claims == again
    for group in claims:
        assert len({claim["task_id"] for claim in group}) == 1
        assert [claim["guided"] for claim in group] == [True, True, False, False]
        assert all(("be brief" in claim["prompt"]) == claim["guided"] for claim in group)
        assert all("be brief" not in claim["loss_prompt"] for claim in group)


def test_claims_carry_what_the_chat_template_is_told(tmp_path: Path, tiny_model: Path) -> None:
    """To the letter: a switch that arrives as a number would turn nothing off."""
    told = {"enable_thinking": False, "effort": "low", "budget": 1, "share": 0.5}
    changes = {"{policy: {": f"{{policy: {{chat_template_kwargs: {json.dumps(told)}, "}
    service = Service(make_run(tmp_path / "one", tiny_model, changes))
    try:
        service.start()
        claim = service.claim(0, 0, 0)
    finally:
        service.process.kill()
        service.process.join()
    assert json.dumps(claim["chat_template_kwargs"]) == json.dumps(told)
    received = ClaimReply.model_validate(claim).chat_template_kwargs
    assert [(value, type(value)) for value in received.values()] == [
        (False, bool), ("low", str), (1, int), (0.5, float)
    ]  # fmt: skip


def test_duplicates_change_nothing_and_another_response_is_refused(service: Service) -> None:
    """Training on that one with the first one's advantage would be wrong, and nobody would see it."""
    service.roll_out(0, but=((0, 0),))
    service.claim(0, 0, 0)
    service.submit(0, 0, 0, "the first of two")
    service.submit(0, 0, 0, "the first of two")
    service.submit(0, 0, 0, "another one, later", expect=409)
    service.ask("GET", "/v1/steps/0/advantages")
    service.ask("POST", "/v1/steps/0/done", REPORT)
    service.ask("POST", "/v1/steps/0/done", REPORT)
    service.submit(0, 1, 1, "a late duplicate of a step that is over")
    (rollouts,) = list(service.run.rollouts.glob("*.jsonl"))
    texts = [row["response"] for row in tiny.rows(rollouts)]
    assert texts[0] == "the first of two"
    assert len(texts) == SLOTS * GROUP
    assert tiny.rows(service.run.metrics)[-1]["rollouts"]["train"] == SLOTS * GROUP
    assert service.ask("GET", "/v1/state")["steps_done"] == 1


def test_what_makes_no_sense_is_refused(service: Service) -> None:
    for step, slot, sample in ((1, 0, 0), (0, SLOTS, 0), (0, 0, GROUP)):
        service.claim(step, slot, sample, expect=409)
    service.submit(0, 0, 0, "not claimed", expect=409)
    service.claim(0, 0, -1, expect=422)
    where = {"step": 0, "slot": 0, "sample": 0}
    told = service.ask("POST", "/v1/claim", {**where, "more": 1}, expect=422)
    assert [one["loc"] for one in told["detail"]] == [["body", "more"]]
    for body in (b"", b"[]", b"{", b'{"step": \xff}', json.dumps(where).encode("utf-16")):
        assert service.http.post("/v1/claim", content=body).status_code == 422
    service.ask("POST", "/v1/steps/1/done", REPORT, expect=409)
    service.ask("POST", "/v1/steps/0/done", REPORT, expect=409)  # its rollouts are out
    service.ask("POST", "/v1/steps/-1/done", REPORT, expect=422)
    service.ask("POST", "/v1/steps/3/saved", {"path": "x", "tag": "y"}, expect=409)
    service.take(0)
    service.claim(0, 0, 0, expect=409)
    for step in (0, 2):  # done, and not begun: to wait would be for ever
        service.ask("GET", f"/v1/steps/{step}/advantages", expect=409)
        service.ask("POST", f"/v1/steps/{step}/redraw", expect=409)


def test_a_missing_rollout_is_waited_for(service: Service) -> None:
    service.roll_out(0, but=((1, 2),))
    # The trainer must not be able to end a step that is not complete.
    service.ask("POST", "/v1/steps/0/done", REPORT, expect=409)
    service.claim(0, 1, 2)
    service.submit(0, 1, 2, "the last one")
    service.ask("GET", "/v1/steps/0/advantages")
    service.ask("POST", "/v1/steps/0/done", REPORT)


def test_without_the_token_nothing_but_health(service: Service) -> None:
    bare = httpx.Client(base_url=service.http.base_url)
    assert bare.get("/health").status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer é".encode()}):
        assert bare.get("/v1/state", headers=headers).status_code == 401
    paths = bare.get("/openapi.json").json()["paths"]
    assert "/v1/claim" in paths
    for path, methods in paths.items():
        for method in methods:
            status = bare.request(method, path.replace("{step}", "0"), json={}).status_code
            assert status == (200 if path == "/health" else 401), path


def test_all_of_it_is_described(service: Service) -> None:
    about = service.ask("GET", "/openapi.json")
    codes = {}
    for path, methods in about["paths"].items():
        for method, call in methods.items():
            assert call["description"], path
            assert all(p.get("description") for p in call.get("parameters", [])), path
            for code, answer in call["responses"].items():
                assert answer["description"], (path, code)
                assert answer["content"]["application/json"]["schema"], (path, code)
            codes[f"{method} {path}"] = sorted(int(code) for code in call["responses"])
    of_step = [200, 202, 401, 409, 410, 422, 503]
    assert codes == {
        "get /health": [200],
        "get /v1/state": [200, 401],
        "post /v1/begin": [200, 202, 401, 503],
        "post /v1/claim": [200, 401, 409, 410, 422, 503],
        "post /v1/submit": [200, 401, 409, 410, 422, 503],
        "post /v1/steps/{step}/redraw": of_step,
        "get /v1/steps/{step}/advantages": of_step,
        "post /v1/steps/{step}/done": of_step,
        "post /v1/steps/{step}/saved": of_step,
        "post /v1/finish": [200, 202, 401, 410, 422, 503],
    }
    for name, schema in about["components"]["schemas"].items():
        if "ValidationError" not in name:  # FastAPI's own
            assert schema["description"], name
            assert all(field.get("description") for field in schema["properties"].values()), name


def test_refuses_to_be_open_to_others_without_a_token(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("", " ", None):
        if token is None:
            monkeypatch.delenv(TOKEN_ENV)
        else:
            monkeypatch.setenv(TOKEN_ENV, token)
        for host in ("0.0.0.0", "192.0.2.1", "::", "a-host-name"):
            with pytest.raises(ExposedError, match=TOKEN_ENV):
                serve(root, host, 8100, False, print)


def test_killed_in_the_middle_of_a_step(service: Service, tmp_path: Path, tiny_model: Path) -> None:
    service.take(0)
    service.roll_out(1, but=((0, 3), (1, 1)))
    claimed = service.claim(1, 1, 1)
    service.kill()
    service.start()
    assert service.ask("GET", "/v1/state")["steps_done"] == 1
    assert service.claim(1, 1, 1) == claimed
    for slot, sample in ((0, 3), (1, 1)):
        service.claim(1, slot, sample)
        service.submit(1, slot, sample, text_of(1, slot, sample))
    found = service.ask("GET", "/v1/steps/1/advantages")
    service.ask("POST", "/v1/steps/1/done", REPORT)
    service.take(2)
    service.ask("POST", "/v1/finish", {"policy": "nowhere"})
    # As if nothing had happened.
    other = Service(make_run(tmp_path / "other", tiny_model))
    other.start()
    try:
        expected = [other.take(step) for step in range(STEPS)]
        other.ask("POST", "/v1/finish", {"policy": "nowhere"})
    finally:
        other.kill(signal.SIGTERM)
    assert found == expected[1]
    ours, theirs = (tiny.timeless(tiny.rows(s.run.metrics)) for s in (service, other))
    assert ours == theirs
    groups = [[r for r in tiny.rows(s.run.events) if r["type"] == "group"] for s in (service, other)]
    assert groups[0] == groups[1]


def test_killed_between_the_records_of_a_step(service: Service) -> None:
    service.take(0)
    service.roll_out(1)
    service.kill()
    # As a kill amid the step's end leaves it: its groups are on record, its summary is not.
    lines = service.run.events.read_text().splitlines()
    group = json.loads(next(line for line in lines if '"type":"group"' in line.replace(" ", "")))
    with service.run.events.open("a") as log:
        log.write(json.dumps({**group, "id": "g-000001-0", "step": 1}) + "\n")
    service.start()
    service.ask("GET", "/v1/steps/1/advantages")
    service.ask("POST", "/v1/steps/1/done", REPORT)
    from harnessrl.memory.events import read_log

    ids = [record.id for record in read_log(service.run.events) if record.id.startswith("g-000001")]
    assert ids == ["g-000001-0", "g-000001-1"]


def test_killed_between_a_steps_record_and_its_metrics(service: Service) -> None:
    service.take(0)
    service.kill()
    (row,) = tiny.rows(service.run.metrics)
    service.run.metrics.write_text("")
    service.start()
    service.take(1)
    rows = tiny.rows(service.run.metrics)
    assert [one["step"] for one in rows] == [0, 1]
    assert rows[0] == {**row, "seconds": {}}


def test_a_checkpoint_counts_the_trainers_steps_and_is_gone_back_to(
    service: Service, tmp_path: Path
) -> None:
    service.take(0)
    theirs = service.run.openrlhf / "checkpoints"
    for tag in ("global_step1", "global_step2", "global_step10"):
        (theirs / "_actor" / tag).mkdir(parents=True)
        (theirs / f"{tag}_hf").mkdir()
    (theirs / "_actor" / "latest").write_text("global_step2")  # the controller did not hear of it
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (theirs / "_actor" / "global_step3").symlink_to(elsewhere)
    (theirs / "global_step4").write_text("a file")
    service.ask("POST", "/v1/steps/1/saved", {"path": str(theirs), "tag": "global_step1"})
    found = latest_checkpoint(service.run)
    assert found is not None
    assert found[0] == 1
    assert json.loads((found[1] / "openrlhf.json").read_text())["tag"] == "global_step1"
    second = service.take(1)
    service.kill(signal.SIGTERM)
    service.start("--resume")
    assert (theirs / "_actor" / "latest").read_text() == "global_step1"
    # With later states beside it, it would be the oldest: the first that OpenRLHF deletes.
    left = {path.name for path in (*theirs.iterdir(), *(theirs / "_actor").iterdir())}
    assert left == {"_actor", "latest", "global_step1", "global_step1_hf"}
    assert elsewhere.is_dir()  # only the link is gone
    assert service.ask("GET", "/v1/state")["steps_done"] == 1
    service.submit(1, 0, 0, "not claimed since then", expect=409)
    assert service.take(1) == second
    assert [row["step"] for row in tiny.rows(service.run.metrics)] == [0, 1]


def test_a_checkpoint_that_is_gone_is_told(service: Service) -> None:
    service.take(0)
    service.ask("POST", "/v1/steps/1/saved", {"path": "/nowhere", "tag": "global_step1"})
    service.kill(signal.SIGTERM)
    done = command(service.run, "--resume")
    assert done.returncode == 2
    assert "/nowhere/_actor/global_step1: gone" in done.stderr


def test_without_a_checkpoint_all_begins_anew(service: Service) -> None:
    service.take(0)
    theirs = service.run.openrlhf / "checkpoints" / "_actor" / "global_step1"
    theirs.mkdir(parents=True)
    service.kill()
    service.start("--resume")
    assert service.ask("GET", "/v1/state")["steps_done"] == 0
    assert not theirs.exists()


# --- looks beside training -------------------------------------------------------------------------

#: Nothing is measured, so that no frozen policy has to be served.
BESIDE = {
    "  c: {evolve: false}": "  c: {evolve: true, anchored: true}",
    "logging:": "evolver: {mode: async, every: 1, alpha: 0.45, max_revisions: 0,\n  "
    "critic: {rollouts: 8, test: none}, propose: {select: any},\n  "
    "attribute: {min_groups: 1, healthy_signal: 1.0}}\nlogging:",
    "steps: 3": "steps: 5",
}


def surviving(run: RunFolder) -> list[dict[str, Any]]:
    return tiny.surviving(run.events)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[dict[str, Any]]:
    """What is on record of a run whose looks were never cut short."""
    service = Service(make_run(tmp_path_factory.mktemp("beside"), tiny_model, BESIDE))
    service.start()
    try:
        exports = [service.take(step)["export"] for step in range(5)]
    finally:
        service.kill()
    assert exports == [True, True, True, False, False]
    return surviving(service.run)


def test_a_look_beside_training_is_applied_a_step_later(beside: list[dict[str, Any]]) -> None:
    steps = {r["id"]: r["step"] for r in beside if r["type"] == "decision"}
    accepted = [r for r in beside if r["type"] == "accepted"]
    assert accepted
    for version in accepted:
        assert {steps[i] for i in version["decision_ids"]} == {version["step"] - 1}
    kinds = [(r["type"], r["step"]) for r in beside]
    assert kinds.index(("group", 1)) < kinds.index(("decision", 0)) < kinds.index(("step", 1))


@pytest.mark.parametrize("resume", [False, True], ids=["the log", "a checkpoint"])
def test_a_look_survives_its_controller(
    resume: bool, beside: list[dict[str, Any]], tmp_path: Path, tiny_model: Path
) -> None:
    service = Service(make_run(tmp_path, tiny_model, BESIDE))
    service.start()
    service.take(0)
    if resume:
        service.ask("POST", "/v1/steps/1/saved", {"path": str(tmp_path), "tag": "global_step1"})
        (tmp_path / "_actor" / "global_step1").mkdir(parents=True)
        found = latest_checkpoint(service.run)
        assert found is not None
        assert json.loads((found[1] / "controller.json").read_text())["look"]["step"] == 0
        service.take(1)
    service.kill()
    service.start(*(["--resume"] if resume else []))
    try:
        for step in range(1, 5):
            service.take(step)
    finally:
        service.kill()
    assert surviving(service.run) == beside


def test_two_controllers_at_once(service: Service) -> None:
    second = command(service.run)
    assert second.returncode == 2
    assert "another process" in second.stderr


# --- redraws --------------------------------------------------------------------------------------


def text_of_attempt(slot: int, sample: int, attempt: int) -> str:
    """Slot 0 ties twice, slot 1 not at all."""
    return "no" if slot == 0 and attempt < 2 else ["no", "see a fox jump"][sample % 2]


def redraw(service: Service, step: int) -> tuple[list[int], int]:
    found = service.ask("POST", f"/v1/steps/{step}/redraw")
    return found["slots"], found["attempt"]


def fill(service: Service, step: int, slot: int, attempt: int, samples: range = range(GROUP)) -> None:
    for i in samples:
        service.claim(step, slot, i, attempt)
        service.submit(step, slot, i, text_of_attempt(slot, i, attempt), attempt)


def test_tied_slots_are_redrawn_and_a_kill_changes_nothing(tmp_path: Path, tiny_model: Path) -> None:
    services = [Service(make_run(tmp_path / name, tiny_model, redraws=2)) for name in ("one", "two")]
    for service, killed in zip(services, (True, False), strict=True):

        def seam(service: Service = service, killed: bool = killed) -> None:
            if killed:
                service.kill()
                service.start()

        service.start()
        try:
            fill(service, 0, 0, 0)
            fill(service, 0, 1, 0, range(3))
            reply = service.http.get("/v1/steps/0/advantages", timeout=60)
            assert reply.status_code == 202  # a rollout is out
            fill(service, 0, 1, 0, range(3, 4))
            assert redraw(service, 0) == redraw(service, 0) == ([0], 1)
            first = service.claim(0, 0, 0, 1)
            seam()
            assert redraw(service, 0) == ([0], 1)
            assert service.claim(0, 0, 0, 1) == first
            service.claim(0, 0, 0, 0, expect=409)
            service.claim(0, 0, 0, 2, expect=409)
            service.submit(0, 0, 0, "of the attempt that was set aside", 0)
            service.submit(0, 0, 0, "of an attempt to come", 2, expect=409)
            fill(service, 0, 0, 1, range(2))
            seam()
            fill(service, 0, 0, 1, range(2, 4))
            assert redraw(service, 0) == ([0], 2)
            seam()
            fill(service, 0, 0, 2)
            seam()
            assert redraw(service, 0) == ([], 0)
            found = service.ask("GET", "/v1/steps/0/advantages")
            assert [any(row) for row in found["advantages"]] == [True, True]
            service.ask("POST", "/v1/steps/0/done", REPORT)
            service.ask("POST", "/v1/steps/0/redraw", expect=409)
        finally:
            service.kill()
    ours, theirs = (tiny.timeless(tiny.rows(s.run.metrics)) for s in services)
    assert ours == theirs
    assert (ours[0]["redrawn"], ours[0]["tied_in_batch"]) == (2, 0)
    assert ours[0]["rollouts"]["train"] == (SLOTS + 2) * GROUP
    groups = [[r for r in tiny.rows(s.run.events) if r["type"] == "group"] for s in services]
    assert groups[0] == groups[1]
    assert [(g["slot"], g["set_aside"]) for g in groups[0]] == [
        (0, False),
        (1, False),
        (2, True),
        (3, True),
    ]
    assert [p.read_text() for p in services[0].run.rollouts.iterdir()] == [
        p.read_text() for p in services[1].run.rollouts.iterdir()
    ]


def test_without_redraws_no_engine_waits_for_the_judging(service: Service) -> None:
    assert redraw(service, 0) == ([], 0)


# --- the frozen policy's server --------------------------------------------------------------------

PROBES = {"probe_samples: 0": "probe_samples: 1"}


class Frozen:
    """A service whose frozen policy's vLLM is a stub (tests/fake_vllm.py)."""

    def __init__(self, folder: Path, model: Path, how: str) -> None:
        folder.mkdir()
        self.how, self.journal = folder / "how", folder / "journal"
        self.how.write_text(how)
        self.journal.touch()
        python = folder / "python"
        python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{fake_vllm}" "{self.how}" "{self.journal}" "$@"\n'
        )
        python.chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        changes = {**PROBES, "device: cpu": f"device: cpu, serve: {{policy: {{port: {port}}}}}"}
        proxies = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""}
        root = make_run(folder, model, changes, probe=True)
        self.service = Service(root, {"OPENRLHF_PYTHON": str(python), **proxies})

    def started(self) -> list[int]:
        """Process ids of its vLLM, and of that one's child."""
        return [int(line) for line in self.journal.read_text().split() if line.isdigit()]

    def wait(self, there: Callable[[], bool], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not there():
            assert time.monotonic() < until, (self.service.run.root / "service.log").read_text()
            time.sleep(0.1)

    def all_ended(self) -> bool:
        return not any(_lives(pid) for pid in self.started())


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize(
    ("how", "number"),
    [("mute", signal.SIGTERM), ("hangs", signal.SIGINT), ("mute", signal.SIGKILL)],
    ids=["while it starts", "in a probe", "killed while it starts"],
)
def test_whatever_ends_the_controller_ends_the_frozen_policys_server(
    how: str, number: int, tmp_path: Path, tiny_model: Path
) -> None:
    frozen = Frozen(tmp_path / "one", tiny_model, how)
    frozen.service.start("--resume")
    try:
        assert frozen.service.http.post("/v1/begin").status_code == 202
        frozen.wait(lambda: len(frozen.started()) == 2)
        if how == "hangs":
            frozen.wait(lambda: "asked" in frozen.journal.read_text())
        assert not frozen.all_ended()
        frozen.service.kill(number)
        if number != signal.SIGKILL:
            assert frozen.all_ended()  # it was ended first
            log = (frozen.service.run.root / "service.log").read_text()
            assert "the run ends" not in log  # to be stopped is no fault of the run's
        frozen.wait(frozen.all_ended, 30)
    finally:
        for pid in frozen.started():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_probe_that_the_controller_was_killed_in_is_made_up_for(
    tmp_path: Path, tiny_model: Path
) -> None:
    frozen = Frozen(tmp_path / "one", tiny_model, "hangs")
    service = frozen.service
    service.start("--resume")
    try:
        assert service.http.post("/v1/begin").status_code == 202  # the trainer says so once
        frozen.wait(lambda: "asked" in frozen.journal.read_text())
        service.kill()
        frozen.how.write_text("answers")
        service.start()
        service.claim(0, 0, 0)  # what it claims waits for the probe
        found = [(r["type"], r.get("split")) for r in surviving(service.run)]
        assert found == [("run_started", None), ("probe", "train"), ("probe", "held_out")]
        service.take(0)
        assert service.ask("POST", "/v1/begin") == {"state": "done"}
        assert [r["type"] for r in surviving(service.run)].count("probe") == 2
    finally:
        service.kill(signal.SIGTERM)
    assert frozen.all_ended()
