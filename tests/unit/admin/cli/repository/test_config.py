"""The mapping of config.pbtxt, and what is said about the rest."""

from __future__ import annotations

import pytest

from admin.cli.repository.config import (
    ModelConfig,
    TensorConfig,
    VersionPolicy,
    WarmupInput,
    read_config,
)
from admin.cli.repository.fields import MODEL, Findings, Known

WHOLE = """
name: "m"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 format: FORMAT_NONE dims: [ 3, -1 ] },
  { name: "t" data_type: TYPE_STRING dims: 1 reshape { shape: [ 1 ] } }
]
output { name: "y" data_type: TYPE_INT64 dims: [ 10 ] label_filename: "labels.txt" }
version_policy { specific { versions: [ 1, 3 ] } }
instance_group [ { kind: KIND_GPU count: 2 }, { kind: KIND_GPU } ]
dynamic_batching { max_queue_delay_microseconds: 1500 }
default_model_filename: "net.onnx"
model_warmup [ { name: "one" batch_size: 2 inputs [
  { key: "x" value { data_type: TYPE_FP32 dims: [ 3, 4 ] random_data: true } },
  { key: "t" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text" } } ] } ]
response_cache { enable: false }
model_transaction_policy { decoupled: false }
"""


def read(text: str) -> tuple[ModelConfig, list[str]]:
    """Return what is used of a text, and what is said about it."""
    findings = Findings()
    config = read_config(text, "m", findings)
    return config, [one.shown("m", "c") for one in findings.items]


def test_everything_that_is_mapped() -> None:
    """A configuration that is honoured as a whole leaves nothing to say."""
    config, said = read(WHOLE)
    assert said == []
    assert config.inputs == (
        TensorConfig("input", "x", "FP32", (3, -1), 7),
        TensorConfig("input", "t", "BYTES", (1,), 8),
    )
    assert config.outputs == (TensorConfig("output", "y", "INT64", (10,), 10, "labels.txt"),)
    assert (config.max_batch_size, config.wait_ms) == (8, 1.5)
    assert (config.replicas, config.device) == (3, "cuda")
    assert config.policy == VersionPolicy("specific", specific=(1, 3), line=11)
    assert config.model_file == "net.onnx"
    assert config.warmup is not None
    assert config.warmup.rows == 2
    assert config.warmup.inputs == (
        WarmupInput("x", "FP32", (3, 4), "random", 16),
        WarmupInput("t", "BYTES", (1,), "@text", 17),
    )


def test_an_empty_file_is_all_defaults() -> None:
    """Triton completes what is missing from the model."""
    assert read("") == (ModelConfig(), [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "other"', "m/c:1: name: refused: expected 'm', the folder's name, got 'other'"),
        ('platform: "tensorrt_plan"', "expected onnxruntime_onnx, got 'tensorrt_plan'; TensorRT"),
        ('platform: "pytorch_libtorch"', "got 'pytorch_libtorch'; PyTorch keeps weights there"),
        ('platform: "ensemble"', "got 'ensemble'; call its models one after the other"),
        ('platform: "tensorflow_savedmodel"', "got 'tensorflow_savedmodel'; convert it"),
        ('backend: "python"', "backend: refused: expected onnxruntime, got 'python'; its model.py"),
        ('backend: "openvino"', "backend: refused: expected onnxruntime, got 'openvino'"),
        ("max_batch_size: -1", "max_batch_size: refused: expected 0 or more, got -1"),
        ("sequence_batching { direct { } }", "sequence_batching: refused: requests do not belong"),
        ("ensemble_scheduling { }", "ensemble_scheduling: refused: models are not joined"),
        ("model_transaction_policy { decoupled: true }", "refused: each request has exactly one"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "batch_input: refused: no inputs are added"),
        ("batch_output { }", "batch_output: refused: outputs are not split"),
        ('cc_model_filenames { key: "7.5" value: "a" }', "refused: one file serves every GPU"),
        ('model_operations { op_library_filename: "a.so" }', "libraries of custom operators"),
        ("model_repository_agents { agents { } }", "model_repository_agents: refused: agents"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] allow_ragged_batch: true }',
            "input.allow_ragged_batch: refused: requests of different shapes are not joined",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] optional: true }',
            "input.optional: refused: a request has every input of the model",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }',
            "input.x.reshape: refused: shapes go through unchanged: clients would have to send [],"
            " not [1]",
        ),
        ('input { name: "x" dims: [ 1 ] }', "input.x: refused: expected a data_type, got none"),
        ("input { data_type: TYPE_FP32 }", "input: refused: expected a name, got none"),
        (
            'output { name: "y" data_type: TYPE_FP32 } output { name: "y" data_type: TYPE_FP32 }',
            "output.y: refused: there are two outputs of that name",
        ),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 0 ] }',
            "input.x: refused: expected dims of 1 and more, or -1, got [0]",
        ),
        ("version_policy { latest { } all { } }", "expected one policy, got latest and all"),
        ("version_policy { specific { } }", "version_policy.specific: refused: expected versions"),
        ("version_policy { latest { num_versions: -2 } }", "expected 1 or more, got -2"),
        ('default_model_filename: "../x"', "refused: expected a file's name, got '../x'"),
        ("instance_group { count: -1 }", "instance_group.count: refused: expected 1, got -1"),
        ("max_bacth_size: 8", "refused: no field of Triton's configuration that fngate knows; did"),
        (
            "max_batch_size: 1 max_batch_size: 2",
            "max_batch_size: refused: the field is there twice",
        ),
        ('max_batch_size: "8"', "max_batch_size: refused: expected a whole number, got '8'"),
        ("max_batch_size: 1.5", "max_batch_size: refused: expected a whole number, got 1.5"),
        ("max_batch_size: 9223372036854775808", "max_batch_size: refused: expected a whole number"),
        ("max_batch_size { }", "max_batch_size: refused: expected a whole number, got a message"),
        ("name: m", "name: refused: expected a string in quotes, got 'm'"),
        ("dynamic_batching: 1", "dynamic_batching: refused: expected a message in { }, got 1"),
        ("instance_group { kind: KIND_TPU }", "expected one of KIND_AUTO, KIND_GPU, KIND_CPU"),
        ('instance_group { passive: "true" }', "expected true or false, got 'true'"),
        ("name: {", "m/c:1: refused: expected a field's name or '}', got 'the end of the file'"),
    ],
)
def test_what_would_change_answers_is_refused(text: str, said: str) -> None:
    """The line names the field, what was expected and what came."""
    lines = read(text)[1]
    assert any(said in line and ": refused: " in line for line in lines), lines


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("optimization { graph { level: 1 } }", "optimization.graph"),
        ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        ("optimization {\nexecution_accelerators { } }", "optimization.execution_accelerators"),
        ("optimization { input_pinned_memory { } }", "optimization.input_pinned_memory"),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        ('parameters { key: "a" value { string_value: "1" } }', "parameters.a"),
        ("response_cache { enable: true }", "response_cache.enable"),
        ('metric_tags { key: "a" value: "b" }', "metric_tags"),
        ("model_metrics { }", "model_metrics"),
        ('runtime: "libtriton_x.so"', "runtime"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 4 }", "preferred_batch_size"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.priority_levels"),
        ("dynamic_batching { default_queue_policy { } }", "dynamic_batching.default_queue_policy"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("max_batch_size: 0 dynamic_batching { }", "dynamic_batching"),
        ("dynamic_batching { max_queue_delay_microseconds: 2000000 }", "max_queue_delay_micros"),
        ("instance_group { gpus: [ 0, 1 ] }", "instance_group.gpus"),
        ("instance_group { rate_limiter { } }", "instance_group.rate_limiter"),
        ("instance_group { passive: true }", "instance_group.passive"),
        (
            "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }",
            "instance_group.kind",
        ),
        ("instance_group { count: 2000 }", "instance_group.count"),
        ("max_batch_size: 100000", "max_batch_size"),
        ("model_warmup { } model_warmup { }", "model_warmup"),
        ("model_warmup { count: 3 }", "model_warmup.count"),
        (
            'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] format: FORMAT_NCHW }',
            "input.format",
        ),
    ],
)
def test_what_has_no_effect_is_said(text: str, path: str) -> None:
    """One line with the field's path, and the model is deployed."""
    lines = read(text)[1]
    assert len(lines) == 1, lines
    assert path in lines[0]
    assert ": ignored: " in lines[0]


@pytest.mark.parametrize(
    ("text", "replicas", "device"),
    [
        ("", 0, ""),
        ("instance_group { }", 1, ""),
        ("instance_group { kind: KIND_CPU count: 4 }", 4, "cpu"),
        ("instance_group { kind: KIND_GPU count: 2 gpus: [ 0, 1, 2 ] }", 6, "cuda"),
        ("instance_group { kind: KIND_MODEL }", 1, ""),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", 2, ""),
        ("instance_group { kind: KIND_CPU count: 2 } instance_group { passive: true }", 2, "cpu"),
        ("instance_group { count: 2000 }", 1000, ""),
    ],
)
def test_instances_become_replicas(text: str, replicas: int, device: str) -> None:
    """Groups add up, one for each GPU that they name."""
    config, _ = read(text)
    assert (config.replicas, config.device) == (replicas, device)


@pytest.mark.parametrize(
    ("text", "rows", "wait_ms"),
    [
        ("", None, None),
        ("max_batch_size: 0", 0, None),
        ("max_batch_size: 16", 16, None),
        ("max_batch_size: 16 dynamic_batching { }", 16, 0.0),
        ("dynamic_batching { max_queue_delay_microseconds: 100 }", None, 0.1),
        ("dynamic_batching { max_queue_delay_microseconds: 2000000 }", None, 1000.0),
        ("max_batch_size: 0 dynamic_batching { }", 0, None),
        ("max_batch_size: 100000", 65_536, None),
    ],
)
def test_batching(text: str, rows: int | None, wait_ms: float | None) -> None:
    """Rows and delay, within what function.toml allows."""
    config, _ = read(text)
    assert (config.max_batch_size, config.wait_ms) == (rows, wait_ms)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", ("latest", 1, ())),
        ("version_policy { latest { } }", ("latest", 1, ())),
        ("version_policy { latest { num_versions: 2 } }", ("latest", 2, ())),
        ("version_policy: { all { } }", ("all", 1, ())),
        ("version_policy { specific { versions: 4 versions: 2 } }", ("specific", 1, (4, 2))),
    ],
)
def test_the_version_policy(text: str, policy: tuple[str, int, tuple[int, ...]]) -> None:
    """Without one it is the latest version."""
    found = read(text)[0].policy
    assert (found.kind, found.latest, found.specific) == policy


def unexplained(fields: dict[str, Known]) -> list[str]:
    """Return the fields that are not read and say nothing."""
    found = [name for name, one in fields.items() if one.fate != "read" and not one.why]
    inner = (one.fields for one in fields.values() if one.fields)
    return found + [name for each in inner for name in unexplained(dict(each))]


def test_nothing_is_dropped_in_silence() -> None:
    """Every field of the schema is read, or has a text that says why it is not."""
    assert unexplained(MODEL) == []
