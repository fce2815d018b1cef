"""`python leash.py COMMAND...`: runs a command that must not outlive whoever started this process.

Standard input is a pipe whose other end that process holds and never writes to. However it ends, killed
too, the pipe is closed then: the command's whole process group (this process leads it) is asked to end,
and killed a little later. Without such a leash a vLLM server would keep its GPUs for ever.
"""

import os
import signal
import subprocess
import sys
import threading
import time

#: Seconds between the request and the kill.
GRACE = 10.0


def main(command: list[str]) -> None:
    """Run the command to its end. What it leaves behind in its process group is killed, this too."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # it is for the command: that is waited for
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_when_let_go, daemon=True).start()
    child.wait()
    os.killpg(0, signal.SIGKILL)


def _end_when_let_go() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
