"""TensorRT's compiler as far as it goes without a GPU: what it asks for, refuses and keeps."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from runtime_image.compilers import tensorrt
from runtime_image.compilers.base import Compilation, CompileError
from runtime_image.compilers.files import VerifiedFiles
from runtime_image.compilers.gpu import NoGpu
from runtime_image.compilers.named import compiler_named
from runtime_image.compilers.onnxruntime import OnnxRuntimeCompiler
from runtime_image.compilers.tensorrt import (
    BESIDE,
    CONTEXT_FILE,
    CONTEXT_MAX,
    LIBRARIES,
    OPTIONS,
    PROVIDER,
    TensorRtCompiler,
    form_of,
    profiles,
    version_text,
)
from runtime_image.contract.compiled import FILES_MAX, TIMING_CACHE, ShapeRange

GPU = "NVIDIA H100 PCIe, 114 SM, 81559 MiB"
RANGES = (
    ShapeRange("x", (1, 3, 224, 224), (8, 3, 224, 224), (16, 3, 224, 224)),
    ShapeRange("mask", (1, 8), (8, 64), (16, 128)),
)


class Libraries:
    """Opened libraries, in order; `version` is TensorRT's number."""

    def __init__(self, version: int = 101601) -> None:
        self.opened: list[tuple[str, int]] = []
        self._version = version

    def load(self, path: str, mode: int) -> Any:
        self.opened.append((path, mode))
        return SimpleNamespace(getInferLibVersion=lambda: self._version)


def compiler(libraries: Libraries, gpu: Any = lambda: GPU) -> TensorRtCompiler:
    return TensorRtCompiler(gpu, libraries.load, lambda: [PROVIDER, BESIDE], lambda: "sm90")


def test_the_platform_names_gpu_and_versions() -> None:
    """TensorRT's libraries are opened for the whole process, its own first."""
    libraries = Libraries()

    platform = compiler(libraries).platform("onnx-1.31.1/cuda-sm90-570.86.15/cpu-x86_64-0")

    assert (platform.compiler, platform.device) == ("10.16.1", GPU)
    assert platform.build == ort.get_build_info()
    assert platform.options == OPTIONS
    assert libraries.opened == [(name, ctypes.RTLD_GLOBAL) for name in LIBRARIES]


def test_nothing_of_tensorrt_is_opened_without_a_gpu() -> None:
    """Its runtime would end the process with a segmentation fault."""
    libraries = Libraries()

    def no_gpu() -> str:
        raise NoGpu("the NVIDIA driver shows no GPU")

    made = compiler(libraries, no_gpu)
    options = ort.SessionOptions()

    with pytest.raises(CompileError, match="the NVIDIA driver shows no GPU"):
        made.platform("")
    with pytest.raises(CompileError, match="the NVIDIA driver shows no GPU"):
        made.compile(Compilation(Path("m.onnx"), Path(), (), options))
    with pytest.raises(CompileError, match="the NVIDIA driver shows no GPU"):
        made.open("context", VerifiedFiles(), Path("m.onnx"), (), options)
    assert libraries.opened == []


def test_this_machine_has_no_tensorrt() -> None:
    """The real compiler refuses with a reason, before it loads anything."""
    made = compiler_named("tensorrt")

    assert (made.name, made.device_kind) == ("tensorrt", "cuda")
    with pytest.raises(CompileError, match=r"this onnxruntime has no Tensorrt|no NVIDIA driver"):
        made.platform("")


def test_missing_libraries_are_a_reason() -> None:
    """The reason names the library."""

    def load(path: str, _mode: int) -> Any:
        raise OSError(f"{path}: cannot open shared object file")

    made = TensorRtCompiler(lambda: GPU, load, lambda: [PROVIDER])

    with pytest.raises(CompileError, match=r"TensorRT 10 cannot be loaded: .*libnvinfer"):
        made.platform("")


def test_compilers_have_their_names() -> None:
    """Each is found by the name in a compiled model."""
    assert isinstance(compiler_named("onnxruntime"), OnnxRuntimeCompiler)
    assert isinstance(compiler_named("tensorrt"), TensorRtCompiler)


@pytest.mark.parametrize(
    ("number", "text"), [(101601, "10.16.1"), (100900, "10.9.0"), (110400, "11.4.0")]
)
def test_a_version_is_readable(number: int, text: str) -> None:
    """As NvInferVersion.h composes it."""
    assert version_text(number) == text


def test_ranges_become_one_explicit_profile() -> None:
    """In the provider's form; without ranges there is none."""
    assert profiles(RANGES) == {
        "trt_profile_min_shapes": "x:1x3x224x224,mask:1x8",
        "trt_profile_opt_shapes": "x:8x3x224x224,mask:8x64",
        "trt_profile_max_shapes": "x:16x3x224x224,mask:16x128",
    }
    assert profiles(()) == {}


@pytest.mark.parametrize(
    ("assigned", "size", "form"),
    [
        ([PROVIDER], 100, "context"),
        ([PROVIDER], 0, "cache"),
        ([PROVIDER], CONTEXT_MAX + 1, "cache"),
        ([PROVIDER, PROVIDER], 100, "cache"),
        ([PROVIDER, BESIDE], 100, "cache"),
        (["CPUExecutionProvider", PROVIDER], 100, "cache"),
    ],
)
def test_one_file_only_for_a_whole_graph(assigned: list[str], size: int, form: str) -> None:
    """A model with its engine inside is kept only if TensorRT took the whole graph as one node."""
    assert form_of(assigned, size) == form


@pytest.mark.parametrize("assigned", [[], [BESIDE], [BESIDE, "CPUExecutionProvider"]])
def test_a_graph_that_tensorrt_leaves_is_not_compiled(assigned: list[str]) -> None:
    """ONNX Runtime would run it all by CUDA, and count it as a success."""
    with pytest.raises(CompileError, match="TensorRT takes no part"):
        form_of(assigned, 100)


class Session:
    """What ONNX Runtime's provider does to its folders, and the arguments it got."""

    calls: list[dict[str, Any]]
    engines = 1
    assigned = (PROVIDER,)
    in_use = (PROVIDER, BESIDE)

    def __init__(self, model: str, options: Any, **kwargs: Any) -> None:
        [(provider, settings), beside] = kwargs["providers"]
        assert (provider, beside, kwargs["enable_fallback"]) == (PROVIDER, BESIDE, 0)
        assert not {name for name in settings if "fp16" in name or "int8" in name}
        type(self).calls.append({"model": model, **settings})
        cache = Path(settings.get("trt_engine_cache_path", "/nowhere"))
        if settings.get("trt_dump_ep_context_model") == "1":
            assert not cache.is_absolute()
            cache = Path(settings["trt_ep_context_file_path"]).parent / cache
        for index in range(self.engines if cache.is_dir() else 0):
            if not (cache / f"engine_{index}_sm90.engine").exists():
                (cache / f"engine_{index}_sm90.engine").write_bytes(b"engine")
                (cache / f"engine_{index}_sm90.profile").write_bytes(b"profile")
        if settings.get("trt_dump_ep_context_model") == "1":
            Path(settings["trt_ep_context_file_path"]).write_bytes(b"context")
        if timing := settings.get("trt_timing_cache_path"):
            name = "TensorrtExecutionProvider_cache_sm90.timing"
            path = Path(timing) / name
            path.write_bytes((path.read_bytes() if path.exists() else b"") + b"timing")

    def get_providers(self) -> list[str]:
        return list(self.in_use)

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [SimpleNamespace(ep_name=name) for name in self.assigned]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[Session]:
    """A class in place of ONNX Runtime's session: no GPU is there for the real one."""
    made = type("Made", (Session,), {"calls": []})
    monkeypatch.setattr(tensorrt.ort, "InferenceSession", made)
    monkeypatch.setattr(tensorrt.ort, "preload_dlls", lambda: None)
    return made


def made_by(folder: Path, timing_cache: bytes = b"") -> tuple[str, dict[str, bytes]]:
    """Compile in `folder`; return form and files by name."""
    order = Compilation(
        folder / "m.onnx", folder, RANGES, ort.SessionOptions(), timing_cache=timing_cache
    )
    form, names = compiler(Libraries()).compile(order)
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    return form, {name: (folder / name).read_bytes() for name in names}


def test_a_whole_graph_becomes_one_file(tmp_path: Path, session: Any) -> None:
    """Engines are built for the ranges while the session is created; the model with its engine and
    the timing cache are kept, in this order."""
    form, files = made_by(tmp_path)

    assert form == "context"
    assert list(files.items()) == [(CONTEXT_FILE, b"context"), (TIMING_CACHE, b"timing")]
    [call] = session.calls
    assert call["trt_profile_max_shapes"] == "x:16x3x224x224,mask:16x128"
    assert call["trt_ep_context_embed_mode"] == "1"
    assert call["trt_timing_cache_enable"] == call["trt_engine_cache_enable"] == "1"


@pytest.mark.usefixtures("session")
def test_an_earlier_timing_cache_is_extended(tmp_path: Path) -> None:
    """It is put where ONNX Runtime looks for it, and what TensorRT adds is kept."""
    _, files = made_by(tmp_path, timing_cache=b"earlier ")

    assert files[TIMING_CACHE] == b"earlier timing"


def test_a_graph_in_parts_becomes_a_cache(tmp_path: Path, session: Any) -> None:
    """All engines are kept with their profiles, and not the model of their nodes."""
    session.engines, session.assigned = 2, (PROVIDER, BESIDE, PROVIDER)

    form, files = made_by(tmp_path)

    assert form == "cache"
    assert list(files) == [
        "engine_0_sm90.engine",
        "engine_0_sm90.profile",
        "engine_1_sm90.engine",
        "engine_1_sm90.profile",
        TIMING_CACHE,
    ]


@pytest.mark.parametrize("engines", [0, FILES_MAX // 2])
def test_a_cache_has_a_limited_number_of_files(tmp_path: Path, session: Any, engines: int) -> None:
    """None at all, or more than a compiled model may have, is no cache."""
    session.engines, session.assigned = engines, (PROVIDER, BESIDE)

    with pytest.raises(CompileError, match=f"made {2 * engines} files of this model"):
        made_by(tmp_path)


def test_a_provider_that_is_not_used_is_an_error(tmp_path: Path, session: Any) -> None:
    """ONNX Runtime only writes a line to its log."""
    session.in_use = (BESIDE, "CPUExecutionProvider")

    with pytest.raises(CompileError, match="TensorrtExecutionProvider could not be used"):
        made_by(tmp_path)


def verified_contents(folder: Path, form: str) -> VerifiedFiles:
    """Return contents of one file, or of a cache with one engine."""
    names = {"context": [CONTEXT_FILE], "cache": ["engine_0_sm90.engine", "engine_0_sm90.profile"]}
    contents = VerifiedFiles()
    for name in names[form]:
        (folder / name).write_bytes(b"content")
        contents.add(name, os.open(folder / name, os.O_RDONLY))
    return contents


@pytest.mark.parametrize("form", ["context", "cache"])
def test_verified_engines_are_opened(
    tmp_path: Path, session: Any, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache is read from a private copy, which is removed; one file is read from memory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    contents = verified_contents(tmp_path, form)

    compiler(Libraries()).open(form, contents, Path("m.onnx"), RANGES, ort.SessionOptions())

    [call] = session.calls
    assert call["model"] == ("m.onnx" if form == "cache" else contents.first)
    assert "trt_dump_ep_context_model" not in call
    assert "trt_timing_cache_enable" not in call
    assert call["trt_profile_min_shapes"] == "x:1x3x224x224,mask:1x8"
    assert ("trt_engine_cache_path" in call) == (form == "cache")
    if form == "cache":
        assert Path(call["trt_engine_cache_path"]).parent == tmp_path
        assert not Path(call["trt_engine_cache_path"]).exists()
    contents.close()


def test_engines_that_were_not_used_are_an_error(
    tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If TensorRT builds although there is a cache, the cache is of no use: the ordinary session is
    quicker to load."""
    monkeypatch.setenv("HOME", str(tmp_path))
    session.engines = 2
    contents = verified_contents(tmp_path, "cache")

    with pytest.raises(CompileError, match="did not use the compiled engines"):
        compiler(Libraries()).open("cache", contents, Path("m.onnx"), (), ort.SessionOptions())

    contents.close()
