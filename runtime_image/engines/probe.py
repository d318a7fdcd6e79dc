"""Reports NVIDIA's libraries that a replica here would load: `-m runtime_image.engines.probe`.

For `fnctl doctor`, in a process of its own: a library may end it with a signal. It prints a JSON
object per part as soon as that is known, so earlier parts survive a crash.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from typing import Any, Final

from runtime_image.gpus import libraries

PACKAGES: Final = ("onnxruntime", "onnxruntime-gpu", "tensorrt-cu13-libs")
ERROR_MAX: Final = 500


def packages() -> dict[str, Any]:
    """Return those of PACKAGES that are installed, with their versions."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def driver() -> dict[str, Any]:
    """Return how many GPUs the driver shows this process."""
    return {"devices": libraries.device_count(), **_versions("libcuda")}


def cuda() -> dict[str, Any]:
    """Run the smallest model on the first GPU, as every standby does; return what that loaded."""
    from runtime_image.engines.loading import require_onnxruntime

    require_onnxruntime()
    from runtime_image.engines.onnx import warm_up

    warm_up("cuda")
    return _versions("libcudart", "libcublas", "libcudnn")


def tensorrt() -> dict[str, Any]:
    """Create a session of the smallest model with the TensorRT provider, as a build does.

    The compiler loads nothing of TensorRT unless the driver shows a GPU: without one, TensorRT ends
    the process with a signal.
    """
    from runtime_image.compilers.tensorrt import BESIDE, PROVIDER, TensorRtCompiler

    TensorRtCompiler().platform("")
    import onnxruntime as ort

    from runtime_image.contract.errors import LoadError
    from runtime_image.engines.onnx import IDENTITY, session_options

    session = ort.InferenceSession(
        IDENTITY, session_options(1), providers=[PROVIDER, BESIDE], enable_fallback=0
    )
    if session.get_providers()[0] != PROVIDER:
        raise LoadError(f"{PROVIDER} could not be used")
    return _versions("libnvinfer")


PARTS: Final[tuple[Callable[[], dict[str, Any]], ...]] = (packages, driver, cuda, tensorrt)


def _versions(*names: str) -> dict[str, Any]:
    """Return version and file of those libraries that this process has loaded."""
    files = libraries.loaded()
    return {
        name: {"version": libraries.version(name, files[name]), "file": files[name]}
        for name in names
        if name in files
    }


def main() -> None:
    """Print the parts."""
    for part in PARTS:
        try:
            found = part()
        except Exception as error:  # noqa: BLE001 - a report, of whatever kind the failure is
            found = {"error": f"{error}"[:ERROR_MAX] or type(error).__name__}
        print(json.dumps({"part": part.__name__, **found}), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
