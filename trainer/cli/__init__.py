"""The `harnessrl` command. Heavy imports happen inside the commands: `--help` answers at once."""

from .app import app, main

__all__ = ["app", "main"]
