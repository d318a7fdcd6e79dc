"""Interface of the compilers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from runtime_image.compilers.files import VerifiedFiles
from runtime_image.compilers.keys import Platform
from runtime_image.contract.compiled import CompilerName, Form, ShapeRange
from runtime_image.contract.errors import LoadError


class CompileError(LoadError):
    """A model cannot be compiled here; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Arguments of one compilation.

    `model` is the file to compile, `target` an empty folder for the compiled files, `options` are
    ONNX Runtime's session options of this replica. `timing_cache` is the content of the timing
    cache of an earlier build, b"" for none. `delay_s` is added to the compilation.
    """

    model: Path
    target: Path
    ranges: tuple[ShapeRange, ...]
    options: Any
    timing_cache: bytes = b""
    delay_s: float = 0.0


class CompileOutput(NamedTuple):
    """Result of a compilation: names of the files in `target`, the one to load first."""

    form: Form
    files: tuple[str, ...]


class Compiler(Protocol):
    """One compiler. Its libraries are imported and loaded only when it is used."""

    name: CompilerName
    device_kind: str
    """Kind of the devices that it compiles for: "cpu" or "cuda"."""

    def platform(self, environment: str) -> Platform:
        """Return what compiled files depend on here; `environment` is the key of ONNX Runtime and
        device. Raises CompileError with the reason why this compiler cannot be used."""

    def compile(self, order: Compilation) -> CompileOutput:
        """Compile a model. Blocks, for TensorRT many minutes; other threads go on. Raises
        CompileError."""

    def open(
        self,
        form: Form,
        contents: VerifiedFiles,
        model: Path,
        ranges: tuple[ShapeRange, ...],
        options: Any,
    ) -> Any:
        """Return a session of verified files; `model` is the model that they were compiled from.

        Never compiles. Raises CompileError, also if any other provider would run what the compiler
        was asked for.
        """
