"""The engine `openrlhf` in a run spec: who has which GPUs, and which servers are started."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from .engines import GrpoEngine, Positive
from .faults import Checked, Fault, fault
from .secrets import ClusterAddress, EnvName, ModelName, ServerFlags, TrainerFlags
from .strict import Many, Strict

Port = Annotated[int, Field(ge=1, le=65535)]
Memory = Annotated[float, Field(gt=0.0, lt=1.0)]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Vllm(Strict):
    """The vLLM engines that roll out."""

    engines: Positive | None = None
    """How many; default with `colocate`: as many as fill the GPUs. Required without."""
    tensor_parallel: Positive = 1
    """GPUs an engine is spread over."""
    gpu_memory: Memory = 0.5
    """Share of a GPU's memory that an engine takes for weights and KV cache."""


class Deepspeed(Strict):
    """How the policy's training state is spread."""

    zero_stage: Annotated[int, Field(ge=0, le=3)] = 3
    """ZeRO: 1 shards the optimizer over the GPUs, 2 the gradients too, 3 the weights as well."""
    offload: bool = False
    """Keep AdamW's state (12 bytes a parameter) in the CPU's memory."""


class Server(Strict):
    """A vLLM server that `harnessrl launch` starts on the node it runs on, and ends with the run."""

    gpus: Many[Annotated[int, Field(ge=0)]] = ()
    """GPUs of that node, by number; several share the model (tensor parallel)."""
    gpu_memory: Memory = 0.9
    """Share of each of these GPUs' memory that it takes."""
    args: ServerFlags = Field(default_factory=dict)
    """More flags of the vLLM server, without their dashes, e.g. `max-model-len: 16384`."""


class PolicyServer(Server):
    """Serves the frozen policy, which the critic samples. Default GPU: the first after training's."""

    port: Port = 8101
    """On 127.0.0.1."""


class RoleServer(Server):
    """Serves a role, at the one address that the role's `base_urls` has."""

    model: ModelName | None = None
    """Weights: a folder or a model hub id; default: the `model` of the role, whose name they get."""


class Serve(Strict):
    """Endpoints that `harnessrl launch` starts before training. The others must be up already."""

    policy: PolicyServer = PolicyServer()
    """The frozen policy; started by the controller when it is first sampled."""
    judge: RoleServer | None = None
    """The server of `roles.judge`."""
    oracle: RoleServer | None = None
    """The server of `roles.oracle`."""
    evolver: RoleServer | None = None
    """The server of `roles.evolver`; when that is the judge's server, say nothing here."""
    timeout: Annotated[float, Field(gt=0.0)] = 1800.0
    """Seconds a server or the controller, which fetches the policy, may take until it answers."""

    def roles(self) -> dict[str, RoleServer]:
        """The roles with a server, by name."""
        named = {"judge": self.judge, "oracle": self.oracle, "evolver": self.evolver}
        return {name: server for name, server in named.items() if server is not None}


class ControllerAddress(Strict, Checked):
    """Where the controller service listens: it says what each rollout is, and scores it."""

    host: str = "127.0.0.1"
    """Address of the node that `harnessrl launch` runs on, as the Ray workers reach it."""
    port: Port = 8100
    """Its port."""
    token_env: EnvName | None = None
    """Environment variable with the secret that workers show; default: made anew at each start."""

    def faults(self) -> Iterator[Fault]:
        """Workers can reach it."""
        if self.host in ("0.0.0.0", "::", ""):
            yield fault("host must be an address that workers can reach, not a wildcard", ("host",))

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return http_url(self.host, self.port)


class OpenrlhfEngine(GrpoEngine, Checked):
    """GRPO by OpenRLHF (Ray, DeepSpeed, vLLM) on one or more GPU nodes: `harnessrl launch`."""

    kind: Literal["openrlhf"]
    """Needs a second environment with OpenRLHF, vLLM and Ray: docs/openrlhf.md."""
    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` is for trying things out: one process of each sort, a tiny model, no Ray cluster."""
    nodes: Positive = 1
    """Nodes that train and roll out."""
    gpus_per_node: Positive = 1
    """GPUs of each node that train and roll out, numbers 0, 1, ... (`serve` takes others)."""
    cluster: ClusterAddress | None = None
    """Job server of a running Ray cluster, e.g. `http://head:8265`; default: one is started here, for
    the run. Required for several nodes."""
    colocate: bool = True
    """Training and vLLM take turns on the same GPUs; false: each has its own."""
    vllm: Vllm = Vllm()
    """Rollouts."""
    deepspeed: Deepspeed = Deepspeed()
    """Training."""
    micro_batch: Positive | None = None
    """Samples that a GPU takes in one forward or backward pass; default: up to 4, as many as divide its
    share of a step."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: a third more compute, far less memory."""
    serve: Serve = Serve()
    """Endpoints to start."""
    controller: ControllerAddress = ControllerAddress()
    """The controller service."""
    args: TrainerFlags = Field(default_factory=dict)
    """Native OpenRLHF flags without their dashes, added or overriding, e.g. `ds.overlap_comm: true`;
    `false` takes a switch away."""

    @property
    def gpus(self) -> int:
        """GPUs that train or roll out, on all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def engines(self) -> int:
        """vLLM engines that roll out."""
        return self.vllm.engines or self.gpus // self.vllm.tensor_parallel

    @property
    def shares_gpus(self) -> bool:
        """Do training and vLLM take turns on the same GPUs?"""
        return self.colocate and self.device == "cuda"

    @property
    def trainers_per_node(self) -> int:
        """GPUs of a node that take gradient steps."""
        if self.device == "cpu" or self.colocate:
            return self.gpus_per_node
        return (self.gpus - self.engines * self.vllm.tensor_parallel) // self.nodes

    @property
    def samples_at_once(self) -> int:
        """Samples that a training GPU takes in one pass."""
        share = self.tasks_per_step * self.group_size // (self.nodes * self.trainers_per_node)
        return self.micro_batch or next(n for n in (4, 3, 2, 1) if share % n == 0)

    @property
    def policy_gpus(self) -> tuple[int, ...]:
        """GPUs of the frozen policy's server."""
        if self.device == "cpu":
            return ()
        return self.serve.policy.gpus or (self.gpus_per_node,)

    def faults(self) -> Iterator[Fault]:
        """What OpenRLHF would refuse, and what does not fit on the GPUs."""
        if self.device == "cpu":
            layout = tuple(self._of_cpu())
        else:
            layout = tuple(self._of_layout())
            yield from self._of_memory()
            yield from self._of_nodes()
        yield from layout or self._of_samples()  # without a layout nobody knows who trains

    def _of_nodes(self) -> Iterator[Fault]:
        if self.nodes > 1 and self.cluster is None:
            yield fault(f"nodes {self.nodes} need a running Ray cluster: set cluster", ("nodes",))
        if self.nodes > 1 and self.controller.host in LOOPBACK:
            told = f"controller.host {self.controller.host} is out of reach for workers on other nodes"
            yield fault(told, ("controller", "host"), ("nodes",))

    def _of_samples(self) -> Iterator[Fault]:
        samples = self.tasks_per_step * self.group_size
        trainers = self.nodes * self.trainers_per_node
        if samples % (self.samples_at_once * trainers):
            told = (
                f"tasks_per_step {self.tasks_per_step} x group_size {self.group_size} = {samples} must "
                f"be a multiple of micro_batch {self.samples_at_once} x {trainers} training GPUs"
            )
            yield fault(told, ("micro_batch",), ("tasks_per_step",), ("group_size",), ("gpus_per_node",))

    def _of_cpu(self) -> Iterator[Fault]:
        told = "device cpu has one node, one process that trains and one vLLM engine"
        given = {
            ("nodes",): self.nodes > 1,
            ("gpus_per_node",): self.gpus_per_node > 1,
            ("cluster",): self.cluster is not None,
            ("vllm", "engines"): (self.vllm.engines or 1) > 1,
        }
        yield from (fault(told, at) for at, wrong in given.items() if wrong)
        for name, server in {"policy": self.serve.policy, **self.serve.roles()}.items():
            if server.gpus:
                yield fault(f"serve.{name}.gpus names GPUs, and device is cpu", ("serve", name, "gpus"))

    def _of_layout(self) -> Iterator[Fault]:
        """Who has which GPUs, as OpenRLHF's own assertions want it."""
        size = self.vllm.tensor_parallel
        if size > self.gpus_per_node:
            told = f"vllm.tensor_parallel {size} is more than gpus_per_node {self.gpus_per_node}"
            yield fault(told, ("vllm", "tensor_parallel"), ("gpus_per_node",))
            return
        rollout = self.engines * size
        if self.colocate and self.deepspeed.zero_stage == 0:
            told = "with colocate the optimizer makes room for vLLM, which stage 0 cannot: use 1, 2 or 3"
            yield fault(told, ("deepspeed", "zero_stage"), ("colocate",))
        if self.colocate:
            if rollout != self.gpus:
                told = (
                    f"colocate: vllm.engines {self.engines} x vllm.tensor_parallel {size} must fill the "
                    f"{self.gpus} GPUs"
                )
                yield fault(told, ("vllm", "engines"), ("vllm", "tensor_parallel"), ("gpus_per_node",))
            return
        if self.vllm.engines is None:
            yield fault("without colocate, vllm.engines is required", ("vllm", "engines"), ("colocate",))
            return
        training = self.gpus - rollout
        if training < self.nodes or training % self.nodes:
            told = (
                f"vLLM takes {rollout} of {self.gpus} GPUs; what is left for training must be the same "
                f"on each of {self.nodes} nodes, and at least 1"
            )
            yield fault(told, ("vllm", "engines"))

    def _of_memory(self) -> Iterator[Fault]:
        """No GPU is promised twice, as far as this node's are known."""
        promised: dict[int, float] = defaultdict(float)
        if self.cluster is None:
            for gpu in range(self.gpus_per_node):
                promised[gpu] += self.vllm.gpu_memory
        for name, server in self.serve.roles().items():
            if not server.gpus:
                told = f"serve.{name}.gpus is required: the GPUs of this node that it may use"
                yield fault(told, ("serve", name, "gpus"))
        shares = {"policy": (self.policy_gpus, self.serve.policy.gpu_memory)}
        shares |= {name: (server.gpus, server.gpu_memory) for name, server in self.serve.roles().items()}
        for gpus, share in shares.values():
            for gpu in gpus:
                promised[gpu] += share
        for gpu, share in sorted(promised.items()):
            if share > 1.0:
                told = (
                    f"GPU {gpu} is promised {share:.2f} times (vllm.gpu_memory of those that train and "
                    "roll out, and serve.*.gpu_memory)"
                )
                takers = [name for name, (gpus, _) in shares.items() if gpu in gpus]
                yield fault(told, *(("serve", name, "gpus") for name in takers), ("serve",))


def http_url(host: str, port: int) -> str:
    """`http://host:port`, brackets around an address of IPv6."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server_address(base_urls: tuple[str, ...]) -> tuple[str, int]:
    """(host, port) where a server for a role has to listen. Raises `ValueError`."""
    if len(base_urls) != 1:
        raise ValueError(f"base_urls has {len(base_urls)} addresses; one server has one")
    url = urlsplit(base_urls[0])
    if url.scheme != "http" or url.hostname is None or url.port is None or url.path.rstrip("/") != "/v1":
        raise ValueError(f"{base_urls[0]} is not of the form http://HOST:PORT/v1")
    return url.hostname, url.port
