"""Fields of Triton's model configuration: types, and texts about those that are not mapped.

Names and types are those of `ModelConfig` in Triton's model_config.proto. A field is read (by
`mapping`), ignored or refused. Refused is what changes answers, or what clients have to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["int", "float", "bool", "string", "enum", "message"]
Fate = Literal["read", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class Known:
    """One field. `why` says what is instead of an ignored field, or why a refused one is.

    `words` are an enumeration's, the default first. `fields` are a message's; None where nothing in
    it is looked at.
    """

    kind: Kind
    fate: Fate = "read"
    why: str = ""
    repeated: bool = False
    words: tuple[str, ...] = ()
    fields: Mapping[str, Known] | None = None


def ignored(kind: Kind, why: str, *, repeated: bool = False) -> Known:
    """Return a field that has no effect."""
    return Known(kind, "ignored", why, repeated)


def refused(kind: Kind, why: str, *, repeated: bool = False) -> Known:
    """Return a field that no model with it is deployed with."""
    return Known(kind, "refused", why, repeated)


def message(fields: Mapping[str, Known], *, repeated: bool = False) -> Known:
    """Return a message whose fields are looked at."""
    return Known("message", repeated=repeated, fields=fields)


TYPES: Final = {
    "TYPE_INVALID": "",
    "TYPE_BOOL": "BOOL",
    "TYPE_UINT8": "UINT8",
    "TYPE_UINT16": "UINT16",
    "TYPE_UINT32": "UINT32",
    "TYPE_UINT64": "UINT64",
    "TYPE_INT8": "INT8",
    "TYPE_INT16": "INT16",
    "TYPE_INT32": "INT32",
    "TYPE_INT64": "INT64",
    "TYPE_FP16": "FP16",
    "TYPE_FP32": "FP32",
    "TYPE_FP64": "FP64",
    "TYPE_STRING": "BYTES",
    "TYPE_BF16": "BF16",
}
"""Triton's data types to the Open Inference Protocol's names."""
INT: Final = Known("int")
TEXT: Final = Known("string")
FLAG: Final = Known("bool")
DIMS: Final = Known("int", repeated=True)
DATA_TYPE: Final = Known("enum", words=tuple(TYPES))
_TENSORRT: Final = "only TensorRT's backend has it"
_OTHER_BACKEND: Final = "it is TensorRT's, and this model is ONNX"
_QUEUE: Final = "`queue` and `wait_s` of function.toml's [limits] bound the queue"

_TENSOR: Final[dict[str, Known]] = {
    "name": TEXT,
    "data_type": DATA_TYPE,
    "dims": DIMS,
    "reshape": message({"shape": DIMS}),
    "is_shape_tensor": refused("bool", _OTHER_BACKEND),
    "is_non_linear_format_io": refused("bool", _OTHER_BACKEND),
}
_INPUT: Final[dict[str, Known]] = {
    **_TENSOR,
    "format": Known(
        "enum",
        "ignored",
        "a tensor has the layout that the model has",
        words=("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"),
    ),
    "allow_ragged_batch": refused("bool", "requests of different shapes are not joined"),
    "optional": refused("bool", "a request has every input of the model"),
}
_OPTIMIZATION: Final[dict[str, Known]] = {
    "graph": ignored("message", "graphs are optimised as far as ONNX Runtime does by default"),
    "priority": Known(
        "enum",
        "ignored",
        "models have no priority over each other",
        words=("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"),
    ),
    "cuda": ignored("message", _TENSORRT),
    "execution_accelerators": ignored(
        "message",
        "TensorRT and precision are `engine` in [runtime] and `precision` in [optimise] of a"
        " function.toml",
    ),
    "input_pinned_memory": ignored("message", "fngate's own buffers are used"),
    "output_pinned_memory": ignored("message", "fngate's own buffers are used"),
    "gather_kernel_buffer_threshold": ignored("int", _TENSORRT),
    "eager_batching": ignored("bool", _TENSORRT),
}
_DYNAMIC_BATCHING: Final[dict[str, Known]] = {
    "max_queue_delay_microseconds": INT,
    "preferred_batch_size": ignored(
        "int", "a batch takes the requests that wait, up to max_size", repeated=True
    ),
    "preserve_ordering": ignored("bool", "each answer goes out as soon as it is ready"),
    "priority_levels": ignored("int", "requests have three priorities: high, normal and low"),
    "default_priority_level": ignored("int", "requests without a priority have the normal one"),
    "default_queue_policy": ignored("message", _QUEUE),
    "priority_queue_policy": ignored("message", _QUEUE, repeated=True),
}
_INSTANCE_GROUP: Final[dict[str, Known]] = {
    "name": ignored("string", "replicas have names of their own"),
    "kind": Known("enum", words=("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")),
    "count": INT,
    "gpus": DIMS,
    "passive": FLAG,
    "rate_limiter": ignored("message", "a replica starts when its device has room"),
    "secondary_devices": ignored("message", _TENSORRT, repeated=True),
    "profile": ignored("string", _TENSORRT, repeated=True),
    "host_policy": ignored("string", "the server's settings place replicas"),
}
_WARMUP_INPUT: Final[dict[str, Known]] = {
    "data_type": DATA_TYPE,
    "dims": DIMS,
    "zero_data": FLAG,
    "random_data": FLAG,
    "input_data_file": TEXT,
}
_ENTRY: Final[dict[str, Known]] = {"key": TEXT, "value": message(_WARMUP_INPUT)}
_PARAMETER: Final[dict[str, Known]] = {"key": TEXT, "value": message({"string_value": TEXT})}

MODEL: Final[dict[str, Known]] = {
    "name": TEXT,
    "platform": TEXT,
    "backend": TEXT,
    "default_model_filename": TEXT,
    "max_batch_size": INT,
    "input": message(_INPUT, repeated=True),
    "output": message({**_TENSOR, "label_filename": TEXT}, repeated=True),
    "version_policy": message(
        {
            "latest": message({"num_versions": INT}),
            "all": message({}),
            "specific": message({"versions": DIMS}),
        }
    ),
    "instance_group": message(_INSTANCE_GROUP, repeated=True),
    "dynamic_batching": message(_DYNAMIC_BATCHING),
    "model_warmup": message(
        {
            "name": TEXT,
            "batch_size": INT,
            "inputs": message(_ENTRY, repeated=True),
            "count": ignored("int", "the trial runs the sample as often as it measures"),
        },
        repeated=True,
    ),
    "optimization": message(_OPTIMIZATION),
    "parameters": message(_PARAMETER, repeated=True),
    "runtime": ignored("string", "ONNX Runtime is fngate's own"),
    "metric_tags": ignored("message", "metrics have the function's name", repeated=True),
    "model_metrics": ignored("message", "histograms have fngate's buckets"),
    "response_cache": message(
        {"enable": ignored("bool", "answers are not cached: each request runs")}
    ),
    "model_transaction_policy": message(
        {"decoupled": refused("bool", "each request has exactly one answer")}
    ),
    "sequence_batching": refused("message", "requests do not belong to sequences"),
    "ensemble_scheduling": refused("message", "models are not joined to pipelines"),
    "batch_input": refused("message", "no inputs are added to a batch", repeated=True),
    "batch_output": refused("message", "outputs are not split by inputs' shapes", repeated=True),
    "cc_model_filenames": refused("message", "one file serves every GPU", repeated=True),
    "model_operations": message(
        {
            "op_library_filename": refused(
                "string", "libraries of custom operators are not loaded", repeated=True
            )
        }
    ),
    "model_repository_agents": refused("message", "agents, which may change files, are not run"),
}
"""The top level of config.pbtxt."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said about a line of config.pbtxt: a field that is ignored, or why the model is
    refused. `line` 0 belongs to no line."""

    line: int
    path: str
    is_refusal: bool
    text: str

    def shown(self, model: str, file: str) -> str:
        """Return the finding as one line: `m/config.pbtxt:3: platform: refused: ...`."""
        at = f"{model}/{file}:{self.line}" if self.line else model
        fate = "refused" if self.is_refusal else "ignored"
        path = f"{self.path}: " if self.path else ""
        return f"{at}: {path}{fate}: {self.text}"


@dataclass(slots=True)
class Findings:
    """Everything that is said about one model, in the order of reading."""

    items: list[Finding] = field(default_factory=list)

    def ignore(self, line: int, path: str, text: str) -> None:
        """Add a field that has no effect, or less than it has in Triton."""
        self.items.append(Finding(line, path, False, text))

    def refuse(self, line: int, path: str, text: str) -> None:
        """Add a reason against deploying the model."""
        self.items.append(Finding(line, path, True, text))

    @property
    def is_refused(self) -> bool:
        """Whether the model may not be deployed."""
        return any(one.is_refusal for one in self.items)
