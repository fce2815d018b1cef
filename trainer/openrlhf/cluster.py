"""Is a Ray cluster fit for a run? A job that looks from inside, before training is started there.

python -m harnessrl.trainer.openrlhf.cluster GPUS     exits with 1, and says why, if it is not
"""

from __future__ import annotations

import importlib
import os
import sys
import urllib.request
from typing import Any

from .versions import missing, unfit


def look() -> list[str]:
    """What this node lacks: packages, or the way to the controller and its token."""
    lacks = [f"no package {name}" for name in missing()] or unfit()
    url = f"{os.environ['HARNESSRL_CONTROLLER']}/health"
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10).close()
    except OSError as error:
        lacks.append(f"{url} does not answer ({error})")
    if token := os.environ.get("HARNESSRL_TOKEN_FILE"):
        try:
            open(token, "rb").close()
        except OSError as error:
            lacks.append(f"the controller's token cannot be read ({error})")
    return lacks


def main(gpus: int) -> int:
    """Looks at the whole cluster; the exit code."""
    ray: Any = importlib.import_module("ray")  # only where OpenRLHF is
    affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    ray.init()
    found = int(ray.cluster_resources().get("GPU", 0))
    problems = [f"the cluster has {found} GPUs, and the run needs {gpus}"] if found < gpus else []
    remote = ray.remote(num_cpus=0)(look)
    for node in ray.nodes():
        if node["Alive"]:
            strategy = affinity(node["NodeID"], soft=False)
            lacks = ray.get(remote.options(scheduling_strategy=strategy).remote(), timeout=120)
            problems += [f"node {node['NodeManagerAddress']}: {lack}" for lack in lacks]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
