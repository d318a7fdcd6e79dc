"""This machine: its GPU, its libraries, and an interpreter for replicas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime_image.contract.gpus import Reading
from runtime_image.gpus.nvml import Nvml
from tests.gpu.outcome import NotTried

ROOT = Path(__file__).resolve().parents[2]
PROBE_S = 60.0
PROBE = """
import json
found = {}
try:
    import torch
    found["torch"] = torch.__version__
    found["torch_cuda"] = torch.version.cuda if torch.cuda.is_available() else None
except Exception as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
try:
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    found["nccl_error"] = f"{type(error).__name__}: {error}"
try:
    import onnxruntime
    found["onnxruntime"] = onnxruntime.__version__
    found["providers"] = onnxruntime.get_available_providers()
except Exception as error:
    found["onnxruntime_error"] = f"{type(error).__name__}: {error}"
try:
    from runtime_image.compilers.tensorrt import TensorRtCompiler
    found["tensorrt"] = TensorRtCompiler().platform("").compiler
except Exception as error:
    found["tensorrt_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
"""Runs in a separate process, so that this one holds no CUDA context that NVML would report."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`gpus`: whole GPUs that NVML lists; `python`: interpreter of server and replicas;
    `libraries`: result of the probe."""

    nvml: Nvml
    gpus: tuple[Reading, ...]
    driver: str
    python: Path
    libraries: dict[str, Any]

    @property
    def gpu(self) -> Reading:
        """The first GPU."""
        return self.gpus[0]

    def need_torch(self) -> None:
        """Raise NotTried without a PyTorch that reaches the GPU."""
        if not self.libraries.get("torch_cuda"):
            reason = self.libraries.get("torch_error", "it is built without CUDA, or finds no GPU")
            raise NotTried(f"PyTorch cannot use the GPU: {reason}")

    def need_onnxruntime(self) -> None:
        """Raise NotTried without ONNX Runtime's CUDA provider."""
        if "CUDAExecutionProvider" not in self.libraries.get("providers", ()):
            version = self.libraries.get("onnxruntime", "none")
            raise NotTried(f"onnxruntime {version} has no CUDAExecutionProvider")

    def need_tensorrt(self) -> None:
        """Raise NotTried without TensorRT, as a build looks for it."""
        self.need_onnxruntime()
        if "tensorrt" not in self.libraries:
            raise NotTried(str(self.libraries.get("tensorrt_error", "the probe failed")))

    def need_nccl(self) -> None:
        """Raise NotTried without a PyTorch that has NCCL."""
        self.need_torch()
        if "nccl" not in self.libraries:
            raise NotTried(f"PyTorch {self.libraries['torch']} has no NCCL")

    def used_by_gpu(self, cards: int) -> list[float]:
        """Return the MiB in use on each of the first `cards` GPUs. Raises as `used_mib`."""
        return [self._used_mib(gpu) for gpu in self.gpus[:cards]]

    def now(self) -> Reading:
        """Return the first GPU's current state. Raises RuntimeError if it does not answer."""
        return self._now(self.gpu)

    def _now(self, gpu: Reading) -> Reading:
        reading = self.nvml.read_one(gpu.uuid)
        if reading is None:
            raise RuntimeError(f"{gpu.uuid} does not answer")
        return reading

    def used_mib(self) -> float:
        """Return the first GPU's memory in use by all processes. Raises NotTried if the driver does
        not report it."""
        return self._used_mib(self.gpu)

    def _used_mib(self, gpu: Reading) -> float:
        used = self._now(gpu).used_mib
        if used is None:
            raise NotTried("the driver does not tell how much memory is in use")
        return used


def find(folder: Path) -> Machine:
    """Inspect the machine and make the interpreter in `folder`. Raises NoDriver, and NotTried if
    the driver lists no GPU."""
    nvml = Nvml()
    nvml.open()
    snapshot = nvml.read()
    if not snapshot.gpus:
        raise NotTried("the NVIDIA driver names no GPU")
    slices = {gpu.parent for gpu in snapshot.gpus}
    whole = tuple(one for one in snapshot.gpus if not one.parent and one.uuid not in slices)
    python = interpreter(folder / "python")
    done = subprocess.run(
        [python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S, check=False
    )
    libraries = json.loads(done.stdout) if done.returncode == 0 else {"torch_error": done.stderr}
    return Machine(nvml, whole or snapshot.gpus[:1], snapshot.driver or "?", python, libraries)


def interpreter(folder: Path) -> Path:
    """Make a virtual environment that sees this checkout and every package of this process.

    Replicas start with `-I`, which ignores PYTHONPATH, and nothing can be installed without a
    network. So each folder of this process's module path gets a line in a .pth file.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    paths = [str(ROOT), *(path for path in sys.path if path and Path(path).is_dir())]
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "fngate.pth").write_text("\n".join(dict.fromkeys(paths)) + "\n")
    return python


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
