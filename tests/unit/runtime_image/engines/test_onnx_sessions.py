"""How ONNX Runtime's sessions are made."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from runtime_image.contract.errors import LoadError
from runtime_image.engines.onnx import (
    IDENTITY,
    check_driver,
    open_session,
    session_options,
    warm_up,
)
from tests.support import models, prepared

GROWTH = """
import sys
from pathlib import Path
from runtime_image.engines.onnx import open_session, warm_up

def data_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData"))

warm_up("cpu")
before = data_kb()
session = open_session(sys.argv[1], "cpu", 1, optimise=False, prepack=False)
print(data_kb() - before)
"""
"""Prints by how many KiB a session makes the writable private mappings of its process grow."""
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_the_least_model_is_one() -> None:
    """It is valid, has nothing but an Identity, and a process can warm up with it."""
    model = onnx.load_from_string(IDENTITY)

    onnx.checker.check_model(model, full_check=True)
    warm_up("cpu")

    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert model.SerializeToString() == IDENTITY


def test_a_session_may_be_made_in_every_way(tmp_path: Path) -> None:
    """Graph rewritten or not, weights repacked or not: the answer is the same."""
    path = str(models.affine(tmp_path, scale=2, offset=1))

    for optimise in (True, False):
        for prepack in (True, False):
            session = open_session(path, "cpu", 1, optimise=optimise, prepack=prepack)
            assert np.array_equal(session.run(["y"], {"x": X})[0], 2 * X + 1)


def test_threads_never_spin() -> None:
    """A replica without requests uses no CPU, and its pool is as large as its share."""
    options = session_options(3)

    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_what_is_prepared_is_not_worked_on_again() -> None:
    """Without optimising the graph stays as it is, without prepacking weights stay mapped."""
    quick = session_options(1, optimise=False, prepack=False)
    fast = session_options(1, optimise=False)
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    assert quick.graph_optimization_level == fast.graph_optimization_level == level
    assert quick.get_session_config_entry("session.disable_prepacking") == "1"
    with pytest.raises(RuntimeError, match="does not have configuration"):
        fast.get_session_config_entry("session.disable_prepacking")


@pytest.mark.slow
def test_mapped_weights_take_no_private_memory(tmp_path: Path) -> None:
    """Beside the mapping itself next to nothing counts against a limit on private memory."""
    prepared.prepare(prepared.layers(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path / prepared.QUICK)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) * 1024 < 1.5 * (tmp_path / prepared.WEIGHTS).stat().st_size


def test_work_is_announced_when_the_threads_are_there(tmp_path: Path) -> None:
    """A thread that lowers its priority before the work lowers that of no thread of the pool."""
    path = str(models.add_one(tmp_path))
    own = threading.get_native_id()
    priority = os.getpriority(os.PRIO_PROCESS, own)
    threads_before = set(os.listdir("/proc/self/task"))
    seen: list[dict[str, int]] = []
    kept: list[object] = []

    def step_back() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        new = set(os.listdir("/proc/self/task")) - threads_before
        seen.append({id: os.getpriority(os.PRIO_PROCESS, int(id)) for id in new})

    def build() -> None:
        kept.append(open_session(path, "cpu", 3, before_work=step_back))

    builder = threading.Thread(target=build)
    builder.start()
    builder.join()

    assert sorted(seen[0].values()) == [priority, priority, 19]
    assert kept


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime can compute on a GPU",
)
def test_a_gpu_is_never_replaced_by_the_cpu(tmp_path: Path) -> None:
    """Asked for a GPU, a wheel for the CPU refuses instead of computing slowly."""
    with pytest.raises(LoadError, match="device cuda: this onnxruntime has no CUDAExecution"):
        open_session(str(models.add_one(tmp_path)), "cuda", 1)


def test_a_missing_driver_is_told() -> None:
    """The reason names what is missing; a library that is there passes."""
    check_driver("libc.so.6")

    with pytest.raises(LoadError, match=r"no NVIDIA driver here \(libnone.so.1: cannot open"):
        check_driver("libnone.so.1")
