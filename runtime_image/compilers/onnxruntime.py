"""ONNX Runtime's own compiler with the CPU provider: every step of a build, without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from runtime_image.compilers.base import Compilation, CompileError, CompileOutput
from runtime_image.compilers.files import VerifiedFiles
from runtime_image.compilers.keys import Platform
from runtime_image.contract.compiled import TIMING_CACHE, CompilerName, Form, ShapeRange

MODEL_FILE: Final = "model.onnx"
PROVIDER: Final = "CPUExecutionProvider"
OPTIONS: Final = (("graph_optimization_level", "all"),)
MEASURED: Final = b"one more build\n"
"""Content that a build adds to the timing cache. This compiler measures nothing: it only shows that
a cache gets from one build to the next."""


class OnnxRuntimeCompiler:
    """Compiles for this processor: the graph optimised, with the weights in one file."""

    name: CompilerName = "onnxruntime"
    device_kind = "cpu"

    def __init__(self, pause: Callable[[float], object] = time.sleep) -> None:
        """`pause(seconds)` sleeps."""
        self._pause = pause

    def platform(self, environment: str) -> Platform:
        """Return versions of ONNX Runtime, and the processor in `environment`."""
        return Platform(environment, ort.get_build_info(), ort.__version__, "", OPTIONS)

    def compile(self, order: Compilation) -> CompileOutput:
        """Compile to one file, after the order's delay."""
        self._pause(order.delay_s)
        try:
            compiler = ort.ModelCompiler(
                order.options,
                str(order.model),
                embed_compiled_data_into_model=True,
                graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
            )
            compiler.compile_to_file(str(order.target / MODEL_FILE))
        except Exception as error:
            reason = str(error).replace(f"{order.target}/", "")
            raise CompileError(reason.replace(f"{order.model.parent}/", "")) from error
        (order.target / TIMING_CACHE).write_bytes(order.timing_cache + MEASURED)
        return CompileOutput("context", (MODEL_FILE, TIMING_CACHE))

    def open(
        self,
        form: Form,
        contents: VerifiedFiles,
        model: Path,  # noqa: ARG002 - the compiled file holds everything
        ranges: tuple[ShapeRange, ...],  # noqa: ARG002 - it takes any shape
        options: Any,
    ) -> Any:
        """Return a session of the compiled file, which needs no further optimisation."""
        if form != "context":
            raise CompileError(f"expected the form context, got {form}")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(
                contents.first, options, providers=[PROVIDER], enable_fallback=0
            )
        except Exception as error:
            raise CompileError(str(error)) from error
