"""Makes the ONNX files of this folder, once: they are committed, tests only read them.

From the project's root, in an environment of its own with Python 3.11:

    pip install torch==2.13.0 transformers==5.23.0 onnx==1.23.2 onnxscript==0.7.2 \
        onnxruntime==1.31.1 scikit-learn==1.9.1 skl2onnx==1.20.0 numpy==2.4.6
    python -m tests.data.row_models.make [NAME ...]

Weights are random from fixed seeds. `manifest.json` has a line for every file: its family, how it
was made, its opset, whether row i of the outputs depends on row i of the inputs alone and, where
not, why. `below` bounds the integers that an input accepts. `unjudged` names the operator or domain
at which the analysis gives up although the model's rows are independent.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime import quantization
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers import float16, optimizer

from tests.data.row_models import classical, sequences, text, vision
from tests.data.row_models.catalogue import SAMPLE_SIZE, Input, Network

HERE: Final = Path(__file__).parent
OPSETS: Final = {"torchscript": 17, "dynamo": 20}
IR_VERSION_MAX: Final = 11
LIMIT: Final = 3_000_000
"""Bytes that all files may have together."""

OPTIMISED: Final = {
    "basic": (
        "cnn_torchscript",
        "lstm_dynamo",
        "swin_torchscript",
        "gpt2_dynamo",
        "knn",
        "last_token_dynamo",
    ),
    "extended": (
        "attention_torchscript",
        "attention_dynamo",
        "bert_torchscript",
        "bert_dynamo",
        "gpt_by_hand_torchscript",
        "gru_both_ways_dynamo",
        "llama_torchscript",
        "resnet_torchscript",
        "roberta_dynamo",
        "tf_idf",
    ),
    "all": (
        "convnext_torchscript",
        "decoder_torchscript",
        "encoder_masked_dynamo",
        "mobilenet_torchscript",
        "recommender_torchscript",
        "vit_torchscript",
        "cnn_qdq",
        "mlp_qoperator",
        "mixed_columns",
    ),
}
LEVELS: Final = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
SCALED_OVER_THE_BATCH: Final = "the activations' scale is taken over the whole batch"

Made = Iterator[tuple[dict[str, Any], Callable[[], onnx.ModelProto]]]
"""Lines of the manifest, and how their files are made."""


def example(wanted: Input) -> torch.Tensor:
    dims = [SAMPLE_SIZE if isinstance(dim, str) else dim for dim in wanted.dims]
    if wanted.below:
        return torch.randint(0, wanted.below, (2, *dims))
    return torch.randn(2, *dims)


def disturbed(module: torch.nn.Module) -> torch.nn.Module:
    """The module with no two parameters alike: exporters share those that are equal."""
    with torch.no_grad():
        for weights in module.parameters():
            weights += torch.randn_like(weights) * 0.05
        for name, values in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                values += torch.rand_like(values)
    return module


def exported(network: Network, exporter: str) -> onnx.ModelProto:
    torch.manual_seed(zlib.crc32(network.name.encode()))
    module = disturbed(network.build().eval())
    args = tuple(example(wanted) for wanted in network.inputs)
    names = [wanted.name for wanted in network.inputs]
    axes = [
        {0: "batch"} | {at: dim for at, dim in enumerate(wanted.dims, 1) if isinstance(dim, str)}
        for wanted in network.inputs
    ]
    if exporter == "torchscript":
        shapes: dict[str, Any] = {"dynamic_axes": dict(zip(names, axes, strict=True))}
    else:
        # What the network fixes besides the batch axis is its own affair.
        dim = torch.export.Dim
        shapes = {
            "dynamic_shapes": tuple({at: dim.AUTO if at else dim.DYNAMIC for at in a} for a in axes)
        }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            args,
            str(path),
            input_names=names,
            opset_version=OPSETS[exporter],
            dynamo=exporter == "dynamo",
            **({"external_data": False, "verbose": False} if exporter == "dynamo" else {}),
            **shapes,
        )
        return onnx.load(path)


def line(name: str, family: str, exporter: str, leaks: str = "", **more: Any) -> dict[str, Any]:
    made = {"name": name, "family": family, "exporter": exporter, "independent": not leaks}
    return made | {key: value for key, value in {"why": leaks, **more}.items() if value}


def networks() -> Made:
    for network in (*vision.NETWORKS, *sequences.NETWORKS, *text.NETWORKS):
        below = {wanted.name: wanted.below for wanted in network.inputs if wanted.below}
        for exporter in network.exporters:
            yield (
                line(
                    f"{network.name}_{exporter}",
                    network.family,
                    exporter,
                    network.leaks.get(exporter, ""),
                    below=below,
                    unjudged=network.unjudged.get(exporter, ""),
                ),
                lambda network=network, exporter=exporter: exported(network, exporter),
            )


def pipelines() -> Made:
    for name, convert in classical.models():
        yield line(name, "scikit-learn", "skl2onnx"), convert


class Samples(quantization.CalibrationDataReader):
    """Random rows for a model with one float input."""

    def __init__(self, model: Path) -> None:
        wanted = ort.InferenceSession(str(model)).get_inputs()[0]
        random = np.random.default_rng(4)
        shape = [8, *wanted.shape[1:]]
        self.left = [{wanted.name: random.normal(size=shape).astype(np.float32)} for _ in range(3)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def written(source: str, write: Callable[[Path, Path], object]) -> onnx.ModelProto:
    """The model that `write` makes of the file `source` of this folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.onnx"
        write(HERE / f"{source}.onnx", path)
        return onnx.load(path)


def static(source: str, form: quantization.QuantFormat) -> onnx.ModelProto:
    def write(model: Path, to: Path) -> None:
        ready = to.with_name("ready.onnx")
        quant_pre_process(model, ready, skip_symbolic_shape=True)
        each = source.startswith("cnn")
        quantization.quantize_static(ready, to, Samples(ready), quant_format=form, per_channel=each)

    return written(source, write)


def in_four_bits(source: str) -> onnx.ModelProto:
    made = MatMulNBitsQuantizer(onnx.load(HERE / f"{source}.onnx"), block_size=16)
    made.process()
    return made.model.model


def fused(source: str) -> onnx.ModelProto:
    return optimizer.optimize_model(
        str(HERE / f"{source}.onnx"), model_type="bert", num_heads=2, hidden_size=16
    ).model


def quantised(lines: dict[str, dict[str, Any]]) -> Made:
    forms = {"qdq": quantization.QuantFormat.QDQ, "qoperator": quantization.QuantFormat.QOperator}
    for source in ("cnn_torchscript", "mlp_torchscript", "mobilenet_torchscript"):
        for suffix, form in forms.items():
            name = f"{source.removesuffix('_torchscript')}_{suffix}"
            yield (
                derived(lines[source], name, f"quantize_static {suffix}"),
                lambda source=source, form=form: static(source, form),
            )
    for source in ("encoder_torchscript", "llama_torchscript"):
        yield (
            derived(lines[source], f"{source}_nbits", "MatMulNBits"),
            lambda source=source: in_four_bits(source),
        )
    for source in ("mlp_torchscript", "encoder_dynamo", "bert_torchscript"):
        yield (
            derived(
                lines[source],
                f"{source}_quantize_dynamic",
                "quantize_dynamic",
                leaks=SCALED_OVER_THE_BATCH,
            ),
            lambda source=source: written(source, quantization.quantize_dynamic),
        )
    yield (
        derived(lines["cnn_torchscript"], "cnn_float16", "float16"),
        lambda: float16.convert_float_to_float16(onnx.load(HERE / "cnn_torchscript.onnx")),
    )
    for source in ("bert_torchscript",):
        yield (
            derived(lines[source], f"{source}_fused", "onnxruntime.transformers"),
            lambda source=source: fused(source),
        )


def derived(source: dict[str, Any], name: str, exporter: str, leaks: str = "") -> dict[str, Any]:
    kept = {key: source[key] for key in ("below",) if key in source}
    return line(name, source["family"], exporter, leaks or source.get("why", ""), **kept)


def optimised(lines: dict[str, dict[str, Any]]) -> Made:
    for level, sources in OPTIMISED.items():
        for source in sources:
            yield (
                derived(lines[source], f"{source}_{level}", f"onnxruntime {level}"),
                lambda source=source, level=level: written(
                    source, lambda model, to: at_level(model, to, level)
                ),
            )


def at_level(model: Path, to: Path, level: str) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 3
    ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what exporters say of their source: stack traces and folders."""
    model.doc_string = model.domain = model.graph.doc_string = ""
    del model.metadata_props[:]
    model.ir_version = min(model.ir_version, IR_VERSION_MAX)
    strip_graph(model.graph)
    for function in model.functions:
        strip_nodes(function)
    return model


def strip_graph(graph: onnx.GraphProto) -> None:
    strip_nodes(graph)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.doc_string = ""
        del value.metadata_props[:]
    del graph.metadata_props[:]


def strip_nodes(owner: onnx.GraphProto | onnx.FunctionProto) -> None:
    for node in owner.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                strip_graph(attribute.g)


def make(made: Made, lines: dict[str, dict[str, Any]], wanted: set[str]) -> None:
    """Write the files of `made`, or those of them whose names are wanted, and fill `lines`."""
    for entry, build in made:
        path = HERE / f"{entry['name']}.onnx"
        if wanted and entry["name"] not in wanted and path.exists():
            model = onnx.load(path)
        else:
            sys.stderr.write(f"{entry['name']}\n")
            model = stripped(build())
            onnx.save(model, path)
        domains = {opset.domain: opset.version for opset in model.opset_import}
        entry["opset"] = domains.get("", 0)
        entry["bytes"] = path.stat().st_size
        if any(node.domain == "com.microsoft.nchwc" for node in model.graph.node):
            entry["unjudged"] = "com.microsoft.nchwc"
        lines[entry["name"]] = entry


def main(wanted: set[str]) -> None:
    lines: dict[str, dict[str, Any]] = {}
    make(networks(), lines, wanted)
    make(pipelines(), lines, wanted)
    make(quantised(lines), lines, wanted)
    make(optimised(lines), lines, wanted)
    for path in HERE.glob("*.onnx"):
        if path.stem not in lines:
            path.unlink()
    total = sum(entry["bytes"] for entry in lines.values())
    if total > LIMIT:
        raise SystemExit(f"{total} bytes, of which {LIMIT} are allowed")
    text_lines = ",\n".join(json.dumps(entry) for entry in lines.values())
    (HERE / "manifest.json").write_text(f"[\n{text_lines}\n]\n")
    sys.stderr.write(f"{len(lines)} files, {total / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(set(sys.argv[1:]))
