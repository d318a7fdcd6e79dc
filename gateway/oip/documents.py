"""Documents of the Open Inference Protocol about the server and its models. Pure.

Sources: KServe Open Inference Protocol, "Server Metadata", "Model Metadata"; Triton's extensions
"Model Configuration" and "Model Repository", and `model_config.proto`, whose field names the
configuration has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from gateway.oip.names import served_name, served_version
from registry.batching import rows_of
from runtime_image.contract.signature import DYNAMIC, TensorSpec

if TYPE_CHECKING:
    from gateway.settings import GatewaySettings
    from registry.catalog import Catalog, Deployed
    from registry.exchange import PoolEndpoints
    from registry.model.revisions import Revision

SERVER: Final = "fngate"
EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)
"""Extensions of the protocol that this server has, by Triton's names."""
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
"""States of a model in the index."""
US_PER_MS: Final = 1000
LOG_SETTINGS: Final[dict[str, Any]] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
"""Settings of the log in the form of Triton's extension "Logging"."""
_FIXED: Final = "these settings cannot be changed while the server runs: set {}"
TRACES_FIXED: Final = _FIXED.format("FN_TRACES and FN_TRACES_SAMPLE")
LOGS_FIXED: Final = _FIXED.format("FN_LOG_FORMAT and FN_ACCESS_LOG")
_PLATFORMS: Final = {"onnx": "onnxruntime_onnx", "python": "python"}
_BACKENDS: Final = {"onnx": "onnxruntime", "python": "python"}
_KINDS: Final = {"any": "KIND_AUTO", "cpu": "KIND_CPU", "cuda": "KIND_GPU"}
_PRIORITIES: Final = {"priority_levels": 3, "default_priority_level": 2}
_STRING: Final = {"BYTES": "TYPE_STRING"}


def server_metadata(version: str) -> dict[str, Any]:
    """Return the metadata of the server, a release `version` of fngate."""
    return {"name": SERVER, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(deployed: Deployed, revisions: Iterable[Deployed]) -> dict[str, Any]:
    """Return the metadata of a model. `revisions`: those of its versions."""
    revision = deployed.revision
    return {
        "name": served_name(deployed),
        "versions": versions_of(revisions),
        "platform": _platform(revision),
        "inputs": [_tensor(one) for one in revision.signature.inputs],
        "outputs": [_tensor(one) for one in revision.signature.outputs],
    }


def model_config(deployed: Deployed, revisions: Iterable[Deployed]) -> dict[str, Any]:
    """Return the configuration of a model, with the fields of `ModelConfig` that mean something
    here. `revisions` as in `model_metadata`."""
    revision, rows = deployed.revision, max_batch_size(deployed)
    signature = revision.signature
    versions = [int(one) for one in versions_of(revisions)]
    config = {
        "name": served_name(deployed),
        "platform": _platform(revision),
        "backend": _BACKENDS.get(revision.engine, revision.engine),
        "version_policy": {"specific": {"versions": versions}},
        "max_batch_size": rows,
        "input": [_config_tensor(one, is_batched=rows > 0) for one in signature.inputs],
        "output": [_config_tensor(one, is_batched=rows > 0) for one in signature.outputs],
        "instance_group": [
            {
                "name": served_name(deployed),
                "kind": _KINDS[revision.device.kind],
                "count": deployed.function.scaling.max,
            }
        ],
        "default_model_filename": (revision.model or revision.handler).rpartition("/")[2],
        "model_transaction_policy": {"decoupled": False},
    }
    if rows:
        delay_us = round(revision.batching.wait_ms * US_PER_MS)
        config["dynamic_batching"] = {"max_queue_delay_microseconds": delay_us, **_PRIORITIES}
    return config


def max_batch_size(deployed: Deployed) -> int:
    """Return the max rows of one run, 0 if requests run one by one: then the first axis of a tensor
    need not be its rows."""
    rows = rows_of(deployed.revision, deployed.profile)
    return rows if rows > 1 else 0


def versions_of(revisions: Iterable[Deployed]) -> list[str]:
    """Return the versions of a model, each once, in the order of their numbers."""
    return sorted({served_version(one) for one in revisions}, key=int)


def current_revisions(catalog: Catalog, deployed: Deployed) -> list[Deployed]:
    """Return the revision that answers for each version of a model, oldest version first.

    One revision of a function may have tensors, and another one none, which is left out.
    """
    function, name = deployed.function, served_name(deployed)
    revisions = catalog.revisions(function.name, function.namespace)
    found = (catalog.find_oip(name, one) for one in versions_of(revisions))
    return [one for one in found if one is not None and one.revision.signature.kind == "tensors"]


def all_served(catalog: Catalog) -> list[Deployed]:
    """Return the revisions of all models that the protocol serves, as `current_revisions`."""
    return [one for function in catalog.all() for one in current_revisions(catalog, function)]


def index_entry(deployed: Deployed, shown: PoolEndpoints) -> dict[str, str]:
    """Return the entry of a version in the repository's index. `shown`: the state of its pool.

    A cold model is ready, for the next call wakes it.
    """
    is_failing = shown.state == "failing"
    reason = shown.told if is_failing else "" if shown.state == "warm" else shown.state
    return {
        "name": served_name(deployed),
        "version": served_version(deployed),
        "state": UNAVAILABLE if is_failing else READY,
        "reason": reason,
    }


def trace_settings(settings: GatewaySettings) -> dict[str, Any]:
    """Return the settings of traces in the form of Triton's extension "Trace"."""
    is_on = bool(settings.traces) and settings.traces_sample > 0
    rate = round(1 / settings.traces_sample) if is_on else 0
    return {
        "trace_level": ["TIMESTAMPS" if is_on else "OFF"],
        "trace_rate": str(rate),
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "opentelemetry",
    }


def _platform(revision: Revision) -> str:
    return _PLATFORMS.get(revision.engine, revision.engine)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.dtype, "shape": list(_shape(spec))}


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape as the protocol has it, one dynamic axis for an unknown rank: it has no
    word for that, and an empty list is a scalar."""
    return (DYNAMIC,) if spec.shape is None else spec.shape


def _config_tensor(spec: TensorSpec, *, is_batched: bool) -> dict[str, Any]:
    # Rows are the first axis of every tensor of a model whose requests are joined.
    dims = _shape(spec)
    if is_batched and spec.has_dynamic_rows:
        dims = dims[1:]
    data_type = _STRING.get(spec.dtype, f"TYPE_{spec.dtype}")
    return {"name": spec.name, "data_type": data_type, "dims": list(dims)}
