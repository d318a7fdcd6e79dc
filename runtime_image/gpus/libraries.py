"""NVIDIA's libraries in this process: driver, CUDA, cuDNN and TensorRT, their versions and files.

Written against their headers; not tried on a GPU yet.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_int
from pathlib import Path
from typing import Any, Final

DRIVER: Final = "libcuda.so.1"
MAPS: Final = Path("/proc/self/maps")
_MAPPED: Final = re.compile(r"(/\S*/(lib(?:cuda|cudart|cublas|cudnn|nvinfer)\.so[.\d]*))$", re.M)


def device_count(library: str = DRIVER) -> int:
    """Return the number of GPUs that the driver shows this process (cuDeviceGetCount), 0 without a
    driver."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return 0
    count = c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(byref(count))
    return 0 if failed else count.value


def preload(onnxruntime: Any, places: Iterable[Path] | None = None) -> None:
    """Load CUDA and cuDNN from NVIDIA's wheels, and else from where the loader finds them.

    ONNX Runtime looks for the wheels beside itself only. In a virtual environment over the system's
    packages, or with PYTHONPATH, they may be elsewhere (`places`, by default found by Python).
    """
    own = Path(onnxruntime.__file__).parent.parent / "nvidia"
    found = [place for place in (_wheels() if places is None else places) if place.is_dir()]
    if own not in found:
        for place in found[:1]:
            for folder in sorted(place.glob("cu[0-9]*/lib")):
                onnxruntime.preload_dlls(cudnn=False, directory=str(folder))
            if (place / "cudnn" / "lib").is_dir():
                onnxruntime.preload_dlls(cuda=False, directory=str(place / "cudnn" / "lib"))
    # A library that is loaded already is found again by its name alone (dlopen(3)).
    onnxruntime.preload_dlls()


def _wheels() -> list[Path]:
    """Return the folders of the package that all wheels of NVIDIA's libraries share."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def loaded(maps: Path = MAPS) -> dict[str, str]:
    """Return NVIDIA's libraries that this process has mapped: paths by short name, as in
    "libcudnn"."""
    found = _MAPPED.findall(maps.read_text(errors="replace"))
    return {file.partition(".")[0]: path for path, file in found}


def version(name: str, path: str) -> str:
    """Return the version that a loaded library reports, "" if it cannot be asked."""
    try:
        return VERSIONS[name](ctypes.CDLL(path))
    except (AttributeError, KeyError, OSError, ValueError):
        return ""


def _two(number: int) -> str:
    """13050 is 13.5 (CUDA Runtime API, cudaRuntimeGetVersion)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _three(number: int) -> str:
    """92800 is 9.28.0 (cudnn_version.h since 9, NvInferVersion.h since 10)."""
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _driver(library: Any) -> str:
    number = c_int()
    return "" if library.cuDriverGetVersion(byref(number)) else _two(number.value)


def _runtime(library: Any) -> str:
    number = c_int()
    return "" if library.cudaRuntimeGetVersion(byref(number)) else _two(number.value)


def _cublas(library: Any) -> str:
    parts = [c_int() for _ in range(3)]
    # libraryPropertyType: MAJOR_VERSION 0, MINOR_VERSION 1, PATCH_LEVEL 2 (library_types.h).
    failed = any(library.cublasGetProperty(kind, byref(part)) for kind, part in enumerate(parts))
    return "" if failed else ".".join(str(part.value) for part in parts)


def _cudnn(library: Any) -> str:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return _three(library.cudnnGetVersion())


def _tensorrt(library: Any) -> str:
    return _three(library.getInferLibVersion())


VERSIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "libcuda": _driver,
    "libcudart": _runtime,
    "libcublas": _cublas,
    "libcudnn": _cudnn,
    "libnvinfer": _tensorrt,
}
"""How a library is asked for its version; none of these needs a GPU."""
