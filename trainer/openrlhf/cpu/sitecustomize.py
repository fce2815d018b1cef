"""`engine.device: cpu`: OpenRLHF 0.11 without a GPU. A smoke mode, to try a run's parts together.

Python runs this file at its start, in every process of the run that has this folder on its path. It
edits no file: as a handful of modules is imported, the lines of theirs that name a GPU are replaced.
Should a line not be there any more (another version of OpenRLHF or vLLM), the import fails and says so.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

#: Module -> (what stands there, what stands there on a CPU).
REPLACED: dict[str, list[tuple[str, str]]] = {
    "openrlhf.utils.deepspeed.deepspeed": [
        # The device mesh of the training processes.
        ('init_device_mesh(\n            "cuda"', 'init_device_mesh(\n            "cpu"'),
        # DeepSpeed's own CPU optimizer is compiled at its first use, for minutes.
        (
            '"type": "AdamW",\n                "params": {',
            '"type": "AdamW",\n                "params": {"torch_adam": True,',
        ),
    ],
    # Collectives over shared memory are compiled as well; one process needs none.
    "deepspeed.comm.torch": [("def build_shm_op():\n", "def build_shm_op():\n    return None\n")],
    "openrlhf.utils.distributed_util": [
        # New weights go to vLLM over NCCL; here over the process group's own store.
        ("from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator", "pass"),
        ("pynccl = PyNcclCommunicator(pg, device=device)", "pynccl = _OverStore(pg)"),
        (
            "def stateless_init_process_group",
            "class _OverStore:\n"
            "    def __init__(self, group):\n"
            "        self.group = group\n\n"
            "    def broadcast(self, tensor, src, stream=None):\n"
            "        if self.group.rank == src:\n"
            "            self.group.broadcast_obj(tensor.detach().contiguous().clone(), src)\n"
            "        else:\n"
            "            tensor.copy_(self.group.broadcast_obj(None, src))\n\n\n"
            "def stateless_init_process_group",
        ),
    ],
    # ... and into a buffer there.
    "openrlhf.trainer.ray.vllm_worker_wrap": [('device="cuda"', "device=self.device")],
    "openrlhf.trainer.ppo_utils.replay_buffer": [
        ('torch.device(f"cuda:{torch.cuda.current_device()}")', 'torch.device("cpu")')
    ],
    # vLLM repacks linear weights for the CPU and lets go of the originals, so that no new ones could be
    # loaded: this leaves them as they are.
    "vllm.model_executor.layers.utils": [("    if layer.weight.is_meta:", "    if True:")],
}


class _Replacing(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        text = self.get_data(self.path).decode()
        for there, here in REPLACED[self.name]:
            if there not in text:
                raise ImportError(
                    f"device cpu: {self.name} has no line {there!r}; is it another version?"
                )
            text = text.replace(there, here)
        code: CodeType = compile(text, self.path, "exec", dont_inherit=True)
        return code


def _no_cuda_calls() -> None:
    """OpenRLHF makes these calls whatever the device; without a GPU they would raise."""
    import torch

    for name in ("set_device", "synchronize", "current_stream", "empty_cache"):
        setattr(torch.cuda, name, lambda *args: None)
    setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))  # noqa: B010  # typed as an int


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in REPLACED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Replacing(name, spec.origin)
        if name.startswith("openrlhf."):
            _no_cuda_calls()
        return spec


sys.meta_path.insert(0, _Finder())
