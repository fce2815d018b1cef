"""`python -m harnessrl.trainer.cli` is `harnessrl`."""

from .app import main

main()
