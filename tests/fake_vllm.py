"""Stands in for the frozen policy's vLLM: `fake_vllm.py HOW JOURNAL ... --port N`.

It writes its process id into the file JOURNAL, and that of a child of its own, as vLLM has some. What the
file HOW says:

    answers   every prompt is answered with the same words
    hangs     its health is fine, and no prompt is answered
    mute      nothing is answered, and SIGTERM is not heard
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOW, JOURNAL = Path(sys.argv[1]), Path(sys.argv[2])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if HOW.read_text() == "hangs":
            with JOURNAL.open("a") as journal:
                journal.write("asked\n")
            time.sleep(600)
        message = {"role": "assistant", "content": "see a fox"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [1, 2]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        self.reply({"id": "1", "object": "chat.completion", "created": 0, "model": "policy",
                    "choices": [choice], "usage": usage})  # fmt: skip

    def reply(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    if HOW.read_text() == "mute":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child inherits that
    child = subprocess.Popen(["sleep", "600"])
    with JOURNAL.open("a") as journal:
        journal.write(f"{child.pid}\n")
        journal.write(f"{os.getpid()}\n")
    if HOW.read_text() == "mute":
        time.sleep(600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
