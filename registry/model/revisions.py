"""Revisions: the immutable definitions of what runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from registry.builds import Compilation
from registry.model.functions import NAMESPACE
from registry.model.servers import ServerSettings
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.precision import Optimisation
from runtime_image.contract.signature import Signature

Engine = Literal["onnx", "python", "server"]
PredictForm = Literal["def", "async def", "generator", "async generator"]


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Requirements of a replica."""

    kind: Literal["any", "cpu", "cuda"] = "any"
    """Kind of device; "any" prefers a GPU with room and falls back to a CPU slot."""
    memory_mib: int = 0
    """Memory cap of a replica in MiB; 0 for the driver's default."""
    share: float = 1.0
    """Share of a GPU that a replica takes, over 0 to 1."""
    count: int = 1
    """Number of GPUs of one host that a replica takes; more than one are whole, equal GPUs."""
    host: dict[str, str] = field(default_factory=dict)
    """Labels that its host must have; {} for any host."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Whether calls share a run of the model."""

    mode: Literal["auto", "always", "off"] = "auto"
    """"auto" batches if the deploy proved that it is safe, "always" also if no comparison refuted
    it."""
    max_size: int = 0
    """Max rows of a batch; 0 for the profile's size."""
    wait_ms: float = 0.0
    """Milliseconds that an incomplete batch waits for more calls."""


@dataclass(frozen=True, slots=True)
class Interface:
    """How a Python function is called, as its own server said in the trial; `registry.interface`
    has checked it."""

    predict: str = ""
    """Signature of `predict` as in Python: "predict(text: str, times: int = 1)"."""
    form: PredictForm = "def"
    """How `predict` is defined; the results of generators are streams."""
    content_types: tuple[str, ...] = ()
    """Content types that calls may have, in words."""
    tensors: Signature | None = None
    """Signature of inputs that are tensors, or one raw body; None for any others."""
    schema: str = ""
    """JSON Schemas of `inputs` and `output` with their `$defs`, as the text of a JSON object; "" if
    there is none."""
    why_not: str = ""
    """Why there is no schema."""
    imports: tuple[tuple[str, float], ...] = ()
    """Packages that the handler imports, with milliseconds, those that took longest first."""

    @property
    def is_stream(self) -> bool:
        """Whether answers are streams."""
        return self.form.endswith("generator")


@dataclass(frozen=True, slots=True)
class Revision:
    """Immutable definition of what runs."""

    name: str
    """Name of its function."""
    number: int
    """Number within the function, from 1."""
    bundle: str
    """Digest of its bundle."""
    signature: Signature
    """Inputs and outputs of its calls."""
    engine: Engine = "onnx"
    """What runs it: ONNX Runtime, a handler in the replica, or an HTTP server."""
    model: str = ""
    """Bundle path of the model, "" for none."""
    handler: str = ""
    """Bundle path of the handler, "" for none."""
    inputs: dict[str, InputRule] = field(default_factory=dict)
    """The manifest's rules by input, for those that have one."""
    output: OutputRule = field(default_factory=OutputRule)
    """The manifest's rule for the answer."""
    batching: Batching = field(default_factory=Batching)
    """Whether calls share a run."""
    device: DeviceNeed = field(default_factory=DeviceNeed)
    """What a replica needs."""
    sample: dict[str, Any] = field(default_factory=dict)
    """The manifest's [sample]: a value by input, "@" and a bundle path for a file; {} for none.
    Those of a server are in `server`."""
    namespace: str = NAMESPACE
    """Namespace of its function."""
    created_s: float = 0.0
    """Unix seconds."""
    server: ServerSettings | None = None
    """The server; None unless it is of a server function."""
    oip_version: str = ""
    """Its version in the Open Inference Protocol, digits; "" for its number."""
    compilation: Compilation | None = None
    """How the model is compiled; None if it is not."""
    optimise: Optimisation | None = None
    """The manifest's [optimise]; None for its defaults."""
    interface: Interface | None = None
    """How a Python function is called; None for others, and before its trial."""

    @property
    def is_python(self) -> bool:
        """Whether it is a Python function: fngate's own server answers its calls."""
        return self.server is not None and self.server.python is not None and bool(self.handler)

    @property
    def ref(self) -> str:
        """Reference in user-facing text: digits@3."""
        return f"{self.name}@{self.number}"

    @property
    def key(self) -> str:
        """Key of its pool in messages and metrics: default/digits@3."""
        return pool_key(self.namespace, self.name, self.number)


def pool_key(namespace: str, name: str, number: int) -> str:
    """Return the key of a revision's pool, as used in messages and metrics."""
    return f"{namespace}/{name}@{number}"
