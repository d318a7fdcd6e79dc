"""Checks of compiled models, precision, libraries and metrics of GPUs.

On one GPU a build needs it alone, so TensorRT's build and its swap are checked apart: the build
between calls, and the swap under load with a compiler for the CPU.
"""

from __future__ import annotations

import threading
from typing import Any

from tests.gpu import bundles
from tests.gpu.box import Box

SWAP = {
    "FN_COMPILER": "onnxruntime",
    "FN_BUILD_DELAY_S": "2",
    "FN_CPU_SLOTS": "2",
    "FN_GPU_STANDBYS": "0",
}
"""A CPU slot for the replica and one for the build, which lasts long enough for calls before it."""
PROBE = "runtime_image.engines.probe"
PROBE_S = 120.0
BUILD_S = 240.0
BETWEEN_S = 20.0
"""Max seconds of a call that takes the GPU from a build."""
CALL_MAX_S = 2.0
"""Max seconds of a call of a warm compiled model: a build takes longer for a ResNet-50."""
ROWS = (1, 2, 3, 5, 8)
BARE_SHARE = 0.95
"""Min share of the bare loop's runs per second that 16 callers get."""
PREFIX = "DCGM_FI_DEV_"
DCGM = ("GPU_UTIL", "FB_USED", "FB_FREE")
"""Families that every driver of a whole GPU has the figures for."""


def picture(rows: int = 1) -> Any:
    """Return pictures for the ResNet-50."""
    import numpy as np

    return np.random.default_rng(0).random((rows, 3, 224, 224), np.float32)


def libraries(box: Box) -> str:
    """The probe of `fnctl doctor` names CUDA's libraries as a replica loads them."""
    box.machine.need_onnxruntime()
    from admin.cli.doctor.gpu_libraries import ask_process, checks

    answer = ask_process([str(box.machine.python), "-I", "-m", PROBE], PROBE_S)
    found = checks(answer, "", "")
    assert answer.parts["driver"]["devices"] >= 1, answer
    assert found[0].level == "ok", found
    return "; ".join(f"{check.name} {check.level}: {check.found}" for check in found)


def metrics(box: Box) -> str:
    """`/metrics` has the GPU under the names of NVIDIA's DCGM exporter."""
    uuid = box.machine.gpu.uuid
    names = [line.partition("{")[0] for line in box.text("/metrics").splitlines() if uuid in line]
    found = {name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)}
    missing = set(DCGM) - found
    assert not missing, f"missing: {sorted(missing)}; found: {sorted(found)}"
    return f"{len(found)} families: {', '.join(sorted(found))}"


def resnet_fp16(box: Box) -> str:
    """Compare a ResNet-50 that a deploy has converted to FP16 with a bare loop of the same."""
    box.machine.need_onnxruntime()
    from benchmarks.models import graphs
    from benchmarks.models.subjects import npy
    from tests.gpu.speed import beside_bare

    model = graphs.convnet().SerializeToString()
    bundle = bundles.onnx(box.folder, "convnet-fp16", model, more=bundles.FP16)
    name = box.deploy(bundle)
    report = box.function(name)["precision"]
    assert report["chosen"] == "fp16", report
    [row] = [one for one in report["candidates"] if one["name"] == "fp16"]
    bare = ("fp16", bundle / "model.onnx")
    figures = beside_bare(box, name, bare, npy(picture()), "application/x-npy", BARE_SHARE)
    return f"{figures}; cosine {row['cosine']:.6f} to FP32"


def tensorrt(box: Box) -> str:
    """TensorRT builds on an idle GPU, a call ends the build, and no call builds."""
    box.machine.need_tensorrt()
    from benchmarks.models import graphs
    from benchmarks.models.subjects import npy

    model = graphs.convnet().SerializeToString()
    plain = box.deploy(bundles.onnx(box.folder, "convnet", model))
    on_cuda = box.post(plain, npy(picture()), "application/x-npy").outputs["y"]
    box.sleep_all()
    name = box.deploy(bundles.onnx(box.folder, "convnet-trt", model, more=bundles.COMPILED))
    box.until(lambda: _build(box, name)["state"] == "building", "the build begins", BUILD_S)
    taken_s = box.post(plain, npy(picture()), "application/x-npy").seconds
    assert taken_s < BETWEEN_S, f"a call waited {taken_s:.1f} s behind a build"
    box.sleep_all()
    box.until(lambda: _build(box, name)["state"] in ("done", "failed"), "the build ends", BUILD_S)
    build = _build(box, name)
    assert build["state"] == "done", build

    cold = box.post(name, npy(picture()), "application/x-npy")
    [replica] = box.replicas(name)
    assert replica["session"] == "compiled", replica
    slowest = max(
        box.post(name, npy(picture(rows)), "application/x-npy").seconds for rows in (*ROWS, *ROWS)
    )
    assert slowest < CALL_MAX_S, f"a call took {slowest:.1f} s: was it a build?"
    apart = difference(cold.outputs["y"], on_cuda)
    return (
        f"built in {build['elapsed_s']} s as {build['form']}, attempt {build['attempts']}; a call "
        f"took the GPU from the build in {taken_s:.1f} s; cold {cold.seconds:.2f} s, slowest warm "
        f"{slowest:.2f} s; ms by rows: {build['compiled_ms']}, by CUDA {build['ordinary_ms']}; "
        f"difference to CUDA {apart:.1e}"
    )


def swap(box: Box) -> str:
    """Calls go on while a model is compiled and swapped in; none fails."""
    from benchmarks.models import graphs
    from benchmarks.models.subjects import npy

    body = npy(_numbers())
    bundle = bundles.onnx(
        box.folder, "tiny", graphs.tiny().SerializeToString(), "cpu", bundles.COMPILED
    )
    name = box.deploy(bundle)
    before = box.post(name, body, "application/x-npy").outputs
    [first] = box.replicas(name)
    assert first["session"] != "compiled", first
    over, failures, calls = threading.Event(), [], []

    def keep_calling() -> None:
        while not over.is_set():
            try:
                calls.append(box.post(name, body, "application/x-npy").outputs)
            except Exception as error:  # noqa: BLE001 - reported as the check's failure
                failures.append(repr(error))
                return

    caller = threading.Thread(target=keep_calling)
    caller.start()
    try:
        seconds = box.until(lambda: _session(box, name) == "compiled", "the swap", BUILD_S)
        box.post(name, body, "application/x-npy")
    finally:
        over.set()
        caller.join()
    [last] = box.replicas(name)
    assert not failures, failures
    assert last["id"] == first["id"], (first, last)
    assert all(outputs == before for outputs in calls), "the answers changed"
    return f"swapped after {seconds:.1f} s; {len(calls)} calls meanwhile, none failed"


def _numbers() -> Any:
    import numpy as np

    return np.random.default_rng(0).random((1, 4), np.float32)


def _build(box: Box, name: str) -> dict[str, Any]:
    build = box.function(name)["build"]
    if build is None or build["state"] == "unavailable":
        raise AssertionError(f"{name} is not compiled: {build}")
    return dict(build)


def _session(box: Box, name: str) -> str:
    [replica] = box.replicas(name)
    return str(replica["session"])


def difference(some: list[list[float]], others: list[list[float]]) -> float:
    """Return the largest difference relative to the largest value."""
    largest = max(abs(b) for row in others for b in row)
    pairs = zip((a for row in some for a in row), (b for row in others for b in row), strict=True)
    return max(abs(a - b) for a, b in pairs) / largest
