"""Server functions: what a sidecar needs to run one revision's HTTP server. Plain data.

A server function is a command, or a container image, that listens on a port and speaks HTTP/1.1.
The *sidecar* is the replica's first process: it speaks the link, starts the server, probes it, and
hands connected sockets to gateways. The server of an image is *apart*: the driver runs it in a
container of its own, which joins the network of the sidecar's container.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from runtime_image.contract.parks import ParkHooks, hooks_from
from runtime_image.contract.samples import (
    GoldenPlan,
    GoldenSample,
    SampleRequest,
    golden_from_json,
    golden_to_json,
)

ENGINE: Final = "server"
"""The engine of server functions, in revisions and in replica records."""
Network = Literal["none", "egress"]
"""none: a network namespace of its own, with the loopback interface only. egress: the host's."""
PORT_DEFAULT: Final = 8000
"""Port of a server in a network namespace of its own, unless `port` names another one."""
FREE_MAX: Final = 64
"""Max exchanges of a replica at once that take no slot."""
MAX_GRACE_S: Final = 5.0
"""Seconds beyond `max_s` after which the sidecar itself ends an exchange."""
QUIESCE_S: Final = 3.0
"""Seconds that a gateway has to answer QUIESCE; then its link and its exchanges are ended."""
MARKER: Final = "FN_REPLICA"
"""Environment variable of every process of a server: the path of its replica's run folder, the
sidecar's argument. With it the process driver finds what a server leaves behind."""
BUNDLE: Final = "FN_BUNDLE"
"""Environment variable of a server: the folder with its function's files, read-only."""
BUNDLE_FOLDER: Final = "/function"
"""Value of BUNDLE in the container of an image."""
GPUS: Final = "${GPUS}"
"""In a command and in variables: the number of GPUs of the replica, 0 on a CPU slot."""
VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER: Final = "CUDA_DEVICE_ORDER"
"""Variables of CUDA: the GPUs that a process sees, and by what they are numbered. Source: CUDA
Programming Guide, environment variables."""
SEVERAL_GPUS: Final = {DEVICE_ORDER: "PCI_BUS_ID"}
"""Variables of a replica on several GPUs, unless its function sets them. CUDA numbers the fastest
GPU first by default; by PCI address a rank is the same card after every start."""
SEVERAL_GPUS_ALONE: Final = {
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Further ones without a network but the loopback interface. NCCL and Gloo need an interface for
their first exchange also on one machine, and NCCL leaves this one out by default (NCCL's
documentation, NCCL_SOCKET_IFNAME: "^docker,lo"); vLLM asks for an address that it is reached at."""
SERVER_FOLDER: Final = "server"
"""Folder of the server below the run folder of its replica. It is all that it may write to."""
OVER_MEMORY: Final = "of memory, its cap is"
"""In the reason of a sidecar that has ended its server for its memory."""
BODY_SHOWN_MAX: Final = 1024
"""Max bytes of a sample's answer that a trial reports."""
DESCRIPTION: Final = "/.fngate/description"
"""Path at which our server of a Python function says what its handler takes and returns."""
DESCRIPTION_MAX: Final = 64 * 1024
"""Max bytes of that answer."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """Everything that a sidecar needs to run the server of one revision. Times in seconds.

    In `command` and the values of `env`, `${PORT}`, `${SOCKET}` and GPUS are replaced. `port` 0
    lets the sidecar choose. `ready` is the path of the readiness probe, which expects a status from
    200 to 399; "" probes "/" and accepts every status below 500. `concurrency` is the number of
    exchanges at once over all gateways. `host` is the Host of probes and samples, "" for the
    server's address. `is_apart`: the driver starts and stops the server, not the sidecar, which
    then has neither command nor variables, and shares only the network with it. `read_only` are
    absolute paths that the server cannot change, as far as it has mounts of its own. `description`
    is the path that a trial asks for a description of the calls, "" for a server that has none. A
    trial learns a golden sample by `golden_plan`, if there is one; other replicas have what an
    earlier trial has learnt as `golden`.
    """

    revision: str
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    ready: str = ""
    network: Network = "none"
    start_s: float = 600.0
    stop_grace_s: float = 10.0
    max_s: float = 600.0
    concurrency: int = 32
    samples: tuple[SampleRequest, ...] = ()
    host: str = ""
    is_apart: bool = False
    read_only: tuple[str, ...] = ()
    description: str = ""
    counter: str = ""
    """Name of a metric that rises as long as the server works; "" for none."""
    metrics: str = "/metrics"
    """Path at which the server shows that metric, in Prometheus' text format."""
    golden_plan: GoldenPlan | None = None
    golden: GoldenSample | None = None
    park: ParkHooks | None = None
    """How it is put to sleep; None if it cannot be parked."""


def several_gpus(count: int, network: Network) -> dict[str, str]:
    """Return the variables of a server on `count` GPUs that its function may set otherwise; none on
    fewer than two."""
    if count < 2:
        return {}
    return {**SEVERAL_GPUS, **(SEVERAL_GPUS_ALONE if network == "none" else {})}


def to_json(spec: ServerSpec) -> dict[str, Any]:
    """Return the spec as plain JSON data; `from_json` is its inverse."""
    golden = golden_to_json(spec.golden) if spec.golden else None
    return {**asdict(spec), "golden": golden}


def from_json(data: dict[str, Any]) -> ServerSpec:
    """Rebuild a spec from `to_json`. Raises TypeError or ValueError on anything else."""
    plain = dict(data)
    plain["command"] = tuple(map(str, plain.get("command", ())))
    plain["env"] = {str(name): str(value) for name, value in dict(plain.get("env", {})).items()}
    plain["samples"] = tuple(SampleRequest(**one) for one in plain.get("samples", ()))
    plain["read_only"] = tuple(map(str, plain.get("read_only", ())))
    if plan := plain.get("golden_plan"):
        marked = plan["request"] and SampleRequest(**plan["request"])
        plain["golden_plan"] = GoldenPlan(**{**plan, "request": marked})
    if golden := plain.get("golden"):
        plain["golden"] = golden_from_json(golden)
    if park := plain.get("park"):
        plain["park"] = hooks_from(park)
    spec = ServerSpec(**plain)
    if not spec.command and not spec.is_apart:
        raise ValueError("command: expected at least one word, got none")
    if spec.network not in get_args(Network):
        raise ValueError(f"network: expected {' or '.join(get_args(Network))}, got {spec.network}")
    return spec
