"""Stands in for every command of a launch script: python (with all it runs) and ray.

Nothing is trained or served here. It keeps a journal of what was started, with which environment, and
what was ended, so that tests can see the order in which a script starts things and how it cleans up.

    STUB_JOURNAL   the file
    STUB_FAULT     NAME:exit (ends at once), NAME:mute (never answers), NAME:dies (ends soon after it was
                   ready); training:fails, training:waits, training:stopped (ends as if all were well, and
                   the run is not finished); cluster:waits; controller:finished (once it was killed, there
                   is no more to do)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

TOLD = ("CUDA_VISIBLE_DEVICES", "VLLM_API_KEY", "PYTHONPATH", "OPENRLHF_PYTHON", "HARNESSRL_DEVICE")
SEAM = ("HARNESSRL_CONTROLLER", "HARNESSRL_TOKEN", "HARNESSRL_TOKEN_FILE")


def note(what: str, name: str, **more: Any) -> None:
    with open(os.environ["STUB_JOURNAL"], "a") as journal:
        journal.write(json.dumps({"what": what, "name": name, **more}) + "\n")


def begin(name: str) -> None:
    environment = {key: os.environ[key] for key in (*TOLD, *SEAM) if key in os.environ}
    note("start", name, argv=sys.argv[1:], env=environment, pid=os.getpid())

    def end(number: int, frame: FrameType | None) -> NoReturn:
        note("end", name)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    if fault(name, "exit"):
        print(f"{name} cannot start")
        sys.exit(3)
    if fault(name, "finished") and "--resume" not in sys.argv:
        print("the run is finished already")
        sys.exit(10)


def fault(name: str, kind: str) -> bool:
    return os.environ.get("STUB_FAULT") == f"{name}:{kind}"


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def serve(name: str, host: str, port: str) -> None:
    begin(name)
    if fault(name, "mute"):
        time.sleep(600)
    server = HTTPServer((host, int(port)), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(6 if fault(name, "dies") else 600)
    print(f"{name} has had enough")
    sys.exit(4)


def train() -> None:
    begin("training")
    print("a line of training", flush=True)
    if fault("training", "fails"):
        sys.exit(5)
    waits = os.environ.get("STUB_FAULT", "").endswith(("waits", "dies", "finished"))
    time.sleep(600 if waits else 2)
    if not fault("training", "stopped"):
        finish(Path(sys.argv[sys.argv.index("--data.prompt_dataset") + 1]).parents[1])
    note("end", "training")


def finish(run: Path) -> None:
    """What the controller does when training says that it is at its end."""
    # Imported here: all other stubs start at once.
    from harnessrl.agents.usage import Usage
    from harnessrl.memory.events import EventLog
    from harnessrl.memory.files import write_atomic
    from harnessrl.memory.records import RunFinished
    from harnessrl.trainer.runfolder import RunFolder

    end = RunFinished(id="end", step=200, harness_version=0, **asdict(Usage()))
    EventLog(RunFolder(run).events).append([end])
    write_atomic(RunFolder(run).report, "the report")


def python(words: list[str]) -> None:
    def value(flag: str) -> str:
        return words[words.index(flag) + 1]

    if words[0] == "-c" or "--check" in words:
        sys.exit(subprocess.run([sys.executable, *words]).returncode)
    elif words[1] == "harnessrl.trainer.openrlhf.versions":
        if fault("versions", "exit"):
            sys.exit("openrlhf is 0.10, and this needs 0.11.2")
    elif words[1] == "harnessrl.trainer.openrlhf.serve":
        serve("controller", value("--host"), value("--port"))
    elif words[1] == "vllm.entrypoints.openai.api_server":
        serve(value("--served-model-name"), value("--host"), value("--port"))
    elif words[1] == "harnessrl.trainer.openrlhf.cluster":
        begin("cluster")
        if fault("cluster", "waits"):
            time.sleep(600)
    elif words[1] == "harnessrl.trainer.openrlhf.train_ppo":
        train()
    else:
        sys.exit(f"no stub for {words}")


def ray(words: list[str]) -> None:
    if words[0] == "start":
        serve("ray", "127.0.0.1", words[words.index("--dashboard-port") + 1])
    elif words[:2] == ["job", "submit"]:
        # A job's environment is the cluster's, with what the file says over it.
        for name in SEAM:
            os.environ.pop(name, None)
        for row in map(json.loads, Path(os.environ["STUB_JOURNAL"]).read_text().splitlines()):
            if (row["what"], row["name"]) == ("start", "ray"):
                os.environ |= {name: row["env"][name] for name in SEAM if name in row["env"]}
        told, files = {}, []
        if "--runtime-env" in words:
            files.append(Path(words[words.index("--runtime-env") + 1]))
            told = json.loads(files[0].read_text())["env_vars"]
            files.append(Path(told["HARNESSRL_TOKEN_FILE"]))
        modes = {str(file): oct(file.stat().st_mode & 0o777) for file in files}
        token = files[-1].read_text() if files else None
        note("submit", "ray", argv=words, told=told, modes=modes, token=token)
        os.environ |= told
        command = words[words.index("--") + 1 :]
        os.execvp(command[0], command)
    elif words[:2] == ["job", "stop"]:
        note("stop", "ray", argv=words)
    else:
        sys.exit(f"no stub for ray {words}")


if __name__ == "__main__":
    {"python": python, "ray": ray}[sys.argv.pop(1)](sys.argv[1:])
