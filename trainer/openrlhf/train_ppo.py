"""`python -m harnessrl.trainer.openrlhf.train_ppo ARGV`: OpenRLHF's `train_ppo_ray` under the harness.

The same arguments, the same program; only its trainer class is the one of `worker.py`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

import openrlhf.trainer.ppo_trainer as ppo
import ray

from .client import Client
from .wire import DEVICE_ENV
from .worker import HarnessTrainer


def main(argv: Sequence[str]) -> None:
    """Train to the end, and tell the controller where the trained policy lies."""
    Client().begin()  # the probe runs while models load
    if os.environ.get(DEVICE_ENV) == "cpu":
        # As many made-up GPUs as there are processes; Ray only counts them.
        room = 200 * 2**20  # bytes
        ray.init("local", num_cpus=16, num_gpus=4, include_dashboard=False, object_store_memory=room)
    # `train_ppo_ray` imports the class when it runs.
    ppo.PPOTrainer = ray.remote(HarnessTrainer)
    sys.argv = ["train_ppo_ray", *argv]
    found = runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    Client().finish(found["args"].ckpt.output_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
