"""TensorRT by ONNX Runtime's provider.

Written against ONNX Runtime 1.31 and TensorRT 10. It has not run on a GPU yet.

The library is loaded only after the driver has shown a GPU: without one, TensorRT's runtime ends
the process with a segmentation fault.
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from runtime_image.compilers.base import Compilation, CompileError, CompileOutput
from runtime_image.compilers.files import VerifiedFiles
from runtime_image.compilers.gpu import NoGpu, architecture, first_gpu
from runtime_image.compilers.keys import Platform
from runtime_image.contract.compiled import (
    FILES_MAX,
    TIMING_CACHE,
    CompilerName,
    Form,
    ShapeRange,
)
from runtime_image.gpus import libraries

PROVIDER: Final = "TensorrtExecutionProvider"
BESIDE: Final = "CUDAExecutionProvider"
"""Provider of the nodes that TensorRT does not take."""
LIBRARIES: Final = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
"""Libraries of the provider in onnxruntime-gpu 1.31, in order of dependence."""
PACKAGE: Final = "tensorrt_libs"
"""Python package that holds these libraries, if they were installed by pip."""
OPTIONS: Final = (
    ("trt_builder_optimization_level", "3"),
    ("trt_max_workspace_size", str(2**30)),
)
"""Options that change the compiled files; part of the key. No option of precision: the precision is
that of the model."""
CONTEXT_FILE: Final = "context.onnx"
BESIDE_CONTEXT: Final = ""
"""Path of the engine cache while a context model is written: the provider takes it as relative to
that model's folder, and logs an error for an absolute one."""
CONTEXT_MAX: Final = 2**31 - 2**20
"""Max bytes of a model with its engine inside: Protocol Buffers end at 2 GiB."""
PREFIX: Final = "engine"
CACHE_SUFFIXES: Final = (".engine", ".profile")
TIMING_PREFIX: Final = "TensorrtExecutionProvider_cache_"
TIMING_SUFFIX: Final = ".timing"
"""Name of the timing cache in the provider's folder, around the GPU's architecture."""
RECORD: Final = "session.record_ep_graph_assignment_info"


class TensorRtCompiler:
    """Builds engines for the first visible GPU."""

    name: CompilerName = "tensorrt"
    device_kind = "cuda"

    def __init__(
        self,
        gpu: Callable[[], str] = first_gpu,
        load: Callable[..., Any] = ctypes.CDLL,
        available: Callable[[], list[str]] = ort.get_available_providers,
        architecture: Callable[[], str] = architecture,
    ) -> None:
        """`gpu()` describes the GPU, `architecture()` is as in "sm90", `load(path, mode)` opens a
        library, `available()` names the providers of ONNX Runtime."""
        self._gpu = gpu
        self._load = load
        self._available = available
        self._architecture = architecture

    def platform(self, environment: str) -> Platform:
        """Return versions, GPU and options. Raises CompileError without GPU, provider or
        TensorRT."""
        if PROVIDER not in self._available():
            raise CompileError(f"this onnxruntime has no {PROVIDER}")
        try:
            gpu = self._gpu()
        except NoGpu as error:
            raise CompileError(str(error)) from error
        version = version_text(self._library().getInferLibVersion())
        return Platform(environment, ort.get_build_info(), version, gpu, OPTIONS)

    def _library(self) -> Any:
        """Load TensorRT, and with it what ONNX Runtime's provider needs of it."""
        folder = package_folder()
        try:
            loaded = [
                self._load(str(folder / name) if folder else name, ctypes.RTLD_GLOBAL)
                for name in LIBRARIES
            ]
        except OSError as error:
            raise CompileError(f"TensorRT 10 cannot be loaded: {error}") from error
        return loaded[0]

    def compile(self, order: Compilation) -> CompileOutput:
        """Build engines for all parts of the graph that TensorRT takes.

        The whole graph as one node becomes one file; else the engines are kept as a cache.
        """
        self.platform("")
        with tempfile.TemporaryDirectory(dir=order.target) as folder:
            cache = Path(folder)
            if order.timing_cache:  # its key says that it is for this GPU
                name = f"{TIMING_PREFIX}{self._architecture()}{TIMING_SUFFIX}"
                (cache / name).write_bytes(order.timing_cache)
            context = cache / CONTEXT_FILE
            order.options.add_session_config_entry(RECORD, "1")
            session = _open(
                str(order.model),
                order.options,
                {
                    **_cache_options(BESIDE_CONTEXT),
                    **profiles(order.ranges),
                    "trt_timing_cache_enable": "1",
                    "trt_timing_cache_path": str(cache),
                    "trt_dump_ep_context_model": "1",
                    "trt_ep_context_file_path": str(context),
                    "trt_ep_context_embed_mode": "1",
                },
            )
            assigned = [one.ep_name for one in session.get_provider_graph_assignment_info()]
            del session
            form = form_of(assigned, context.stat().st_size if context.is_file() else 0)
            return _kept(form, cache, order.target)

    def open(
        self,
        form: Form,
        contents: VerifiedFiles,
        model: Path,
        ranges: tuple[ShapeRange, ...],
        options: Any,
    ) -> Any:
        """Return a session of verified engines. A cache is copied to a private folder, because the
        provider reads it by name and writes to it."""
        self.platform("")
        if form == "context":
            return _open(contents.first, options, profiles(ranges))
        with tempfile.TemporaryDirectory(dir=Path.home()) as name:
            cache = Path(name)
            for file in contents.names():
                (cache / file).write_bytes(Path(contents.path(file)).read_bytes())
            before = _state(cache)
            session = _open(str(model), options, {**_cache_options(name), **profiles(ranges)})
            if _state(cache) != before:
                raise CompileError("TensorRT did not use the compiled engines but built new ones")
            return session


def version_text(number: int) -> str:
    """Return TensorRT's version from NvInferVersion.h's number: 101601 is "10.16.1"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def package_folder() -> Path | None:
    """Return the folder of libraries installed by pip, None if the system's are to be used."""
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]) if places else None


def profiles(ranges: tuple[ShapeRange, ...]) -> dict[str, str]:
    """Return the provider's options for an explicit profile, {} without ranges. With one, engines
    are built while the session is created; without one, in the first run of each shape."""
    ends = {"min": "smallest", "opt": "usual", "max": "largest"}
    if not ranges:
        return {}
    return {
        f"trt_profile_{short}_shapes": ",".join(
            f"{one.input}:{'x'.join(map(str, getattr(one, end)))}" for one in ranges
        )
        for short, end in ends.items()
    }


def form_of(assigned: list[str], context_bytes: int) -> Form:
    """Return the form of the compiled files by the providers of all parts of the graph. Raises
    CompileError if TensorRT takes none."""
    own = assigned.count(PROVIDER)
    if not own:
        raise CompileError("TensorRT takes no part of this model")
    whole = own == len(assigned) == 1 and 0 < context_bytes <= CONTEXT_MAX
    return "context" if whole else "cache"


def _kept(form: Form, cache: Path, target: Path) -> CompileOutput:
    """Move the files of a form from `cache` to `target`. Raises CompileError if there are too
    many."""
    wanted = [cache / CONTEXT_FILE] if form == "context" else _engines(cache)
    if not 0 < len(wanted) < FILES_MAX:
        raise CompileError(
            f"TensorRT made {len(wanted)} files of this model, expected 1 to {FILES_MAX - 1}"
        )
    names = [path.rename(target / path.name).name for path in wanted]
    for timing in cache.glob(f"*{TIMING_SUFFIX}"):
        names.append(timing.rename(target / TIMING_CACHE).name)
        break
    return CompileOutput(form, tuple(names))


def _engines(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.suffix in CACHE_SUFFIXES)


def _cache_options(cache: str) -> dict[str, str]:
    return {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": cache,
        "trt_engine_cache_prefix": PREFIX,
    }


def _state(cache: Path) -> list[tuple[str, int, int]]:
    """Return names, sizes and times of all files."""
    found = ((path.name, path.stat()) for path in sorted(cache.iterdir()))
    return [(name, one.st_size, one.st_mtime_ns) for name, one in found]


def _open(model: str, options: Any, provider_options: dict[str, str]) -> Any:
    """Return a session. Raises CompileError if TensorRT could not be used: without both checks,
    ONNX Runtime would go on without it."""
    settings = {"device_id": "0", **dict(OPTIONS), **provider_options}
    libraries.preload(ort)
    try:
        session = ort.InferenceSession(
            model, options, providers=[(PROVIDER, settings), BESIDE], enable_fallback=0
        )
    except Exception as error:
        raise CompileError(str(error)) from error
    if session.get_providers()[0] != PROVIDER:
        raise CompileError(f"{PROVIDER} could not be used, see the logs")
    return session
