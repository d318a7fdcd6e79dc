"""Finds a compiler by its name; imports only that one."""

from __future__ import annotations

from runtime_image.compilers.base import Compiler
from runtime_image.contract.compiled import CompilerName


def compiler_named(name: CompilerName) -> Compiler:
    """Return the compiler. Loads none of its libraries."""
    if name == "onnxruntime":
        from runtime_image.compilers.onnxruntime import OnnxRuntimeCompiler

        return OnnxRuntimeCompiler()
    from runtime_image.compilers.tensorrt import TensorRtCompiler

    return TensorRtCompiler()
