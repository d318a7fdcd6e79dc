"""The promises of "On a GPU box", one function each; it returns the measured figure.

A broken promise raises AssertionError, a missing prerequisite NotTried.
"""

from __future__ import annotations

import os
import signal
import threading

from tests.gpu import bundles, compiled
from tests.gpu.box import Box
from tests.gpu.outcome import Check

SLACK_MIB = 256
TOLERANCE = 1e-3
"""Max relative difference to the largest value, from the order of additions and TF32."""
MIB = 2**20


def inventory(box: Box) -> str:
    """The admin API reports the GPU as NVML does."""
    gpu, device = box.machine.gpu, box.device()
    assert device["kind"] == "cuda", device
    assert device["name"] == gpu.name, (device, gpu)
    assert device["index"] == gpu.index, (device, gpu)
    if gpu.total_mib is not None:
        assert device["total_mib"] == round(gpu.total_mib), (device, gpu)
    capability = None if gpu.capability is None else ".".join(map(str, gpu.capability))
    assert device["capability"] == capability, (device, gpu)
    return f"{gpu.name}, {device['total_mib']} MiB, compute capability {capability}"


def handler(box: Box) -> str:
    """A PyTorch handler runs on the GPU and gives the same answers as on the CPU."""
    box.machine.need_torch()
    name = box.deploy(bundles.linear(box.folder, "linear-a"))
    twin = box.deploy(bundles.linear(box.folder, "linear-cpu", "cpu"))
    rows = [[(7 * i + j) % 11 / 11 for j in range(256)] for i in range(4)]
    on_gpu = box.call(name, {"rows": rows}).outputs
    on_cpu = box.call(twin, {"rows": rows}).outputs
    assert on_gpu["device"].startswith("cuda"), on_gpu["device"]
    assert on_cpu["device"] == "cpu", on_cpu["device"]
    return f"largest difference {_difference(on_gpu['rows'], on_cpu['rows']):.1e} of the largest"


def ledger(box: Box) -> str:
    """The memory charged for replicas covers what NVML reports for their processes."""
    box.machine.need_torch()
    name = box.deploy(bundles.linear(box.folder, "linear-a"))
    box.call(name)
    device, pid = box.device(), box.pid(name)
    listed = {item.pid: item.memory_mib for item in box.machine.now().processes or ()}
    grown = box.machine.used_mib() - (box.machine.gpu.used_mib or 0.0)
    own = listed.get(pid)
    seen = grown if own is None else own
    assert seen >= 512, f"the replica keeps 512 MiB, NVML shows {seen:.0f}"
    assert seen <= device["charged_mib"] + SLACK_MIB, (seen, device)
    source = "in use" if own is None else f"of pid {pid}"
    return f"charged {device['charged_mib']} MiB, NVML {seen:.0f} MiB {source}"


def sharing(box: Box) -> str:
    """Two functions with share = 0.4 are ready on one GPU at the same time."""
    box.machine.need_torch()
    names = [box.deploy(bundles.linear(box.folder, name)) for name in ("linear-a", "linear-b")]
    pids = {name: box.call(name).outputs["pid"] for name in names}
    assert {name: box.pid(name) for name in names} == pids
    held = {item["device"] for name in names for item in box.replicas(name)}
    assert held == {box.machine.gpu.uuid}, held
    return f"pids {sorted(pids.values())} on {box.machine.gpu.uuid}"


def memory_back(box: Box) -> str:
    """After kill -9 of a replica its memory is released, and the next call is answered."""
    box.machine.need_torch()
    name = box.deploy(bundles.linear(box.folder, "linear-a"))
    box.sleep_all()
    idle = box.machine.used_mib()
    box.call(name)
    taken = box.machine.used_mib() - idle
    os.kill(box.pid(name), signal.SIGKILL)
    back_s = box.until_used(idle + SLACK_MIB)
    reply = box.call(name)
    return f"{taken:.0f} MiB back after {back_s:.2f} s, next answer in {reply.seconds:.2f} s"


def waiting(box: Box) -> str:
    """A function that needs the whole GPU gets it from a busy one, and both are served."""
    box.machine.need_torch()
    busy = box.deploy(bundles.linear(box.folder, "busy", share=1.0))
    other = box.deploy(bundles.linear(box.folder, "waits", share=1.0))
    box.call(busy)
    over, failures, calls = threading.Event(), [], []

    def keep_busy() -> None:
        while not over.is_set():
            try:
                calls.append(box.call(busy, {"busy_s": 0.2}).seconds)
            except Exception as error:  # noqa: BLE001 - reported as the check's failure
                failures.append(repr(error))
                return

    caller = threading.Thread(target=keep_busy)
    caller.start()
    try:
        waited = box.call(other).seconds
    finally:
        over.set()
        caller.join()
    assert not failures, failures
    return (
        f"waited {waited:.1f} s behind a busy function, which answered {len(calls)} calls, "
        f"the slowest in {max(calls):.1f} s"
    )


def quarantine(box: Box) -> str:
    """A GPU whose memory is not released takes no replica until it is."""
    box.machine.need_torch()
    name = box.deploy(bundles.linear(box.folder, "leaks", share=1.0))
    leak = box.call(name, {"leak": True}).outputs["leak_pid"]
    try:
        box.send_to_zero(name)
        box.until(lambda: box.device()["state"] == "quarantined", "the GPU is quarantined")
        reason = box.device()["reason"]
    finally:
        os.kill(leak, signal.SIGKILL)
    free_s = box.until(lambda: box.device()["state"] == "free", "the GPU is free again")
    return f"{reason}; free {free_s:.1f} s after the process ended"


def phases(box: Box) -> str:
    """A cold start without a standby passes through all phases."""
    box.machine.need_torch()
    return _cold(box, "start")


def standby(box: Box) -> str:
    """A GPU standby serves the cold start: no process is started for it.

    A standby warms ONNX Runtime up on its GPU, so without the CUDA provider there is none.
    """
    box.machine.need_torch()
    box.machine.need_onnxruntime()
    box.until(lambda: bool(box.replicas(state="standby")), "a standby waits", seconds=60.0)
    used = box.machine.used_mib() - (box.machine.gpu.used_mib or 0.0)
    return f"{_cold(box, '')}; the standby holds {used:.0f} MiB"


def _cold(box: Box, wanted: str) -> str:
    """Call a sleeping function; return its receipt's phases. `wanted`: whether "start" must be
    one."""
    name = box.deploy(bundles.linear(box.folder, "linear-a"))
    box.sleep_all()
    if not wanted:
        box.until(lambda: bool(box.replicas(state="standby")), "a standby waits", seconds=60.0)
    reply = box.call(name)
    timing = {key: ms for key, ms in reply.timing.items() if key in _PHASES}
    assert timing, f"the call was not cold: {reply.timing}"
    assert ("start" in timing) == bool(wanted), timing
    told = " ".join(f"{key} {ms:.0f}" for key, ms in timing.items())
    return f"answered in {reply.seconds * 1e3:.0f} ms: {told} (ms)"


_PHASES = ("place", "evict", "start", "import", "bind", "fetch", "read", "load", "first_run")


def _difference(some: list[list[float]], others: list[list[float]]) -> float:
    """Return the largest difference relative to the largest value. Raises AssertionError above
    TOLERANCE."""
    found = compiled.difference(some, others)
    assert found <= TOLERANCE, f"outputs differ by {found:.1e} of the largest value"
    return found


def session_on_cuda(box: Box) -> str:
    """ONNX Runtime's session is on the GPU and gives the same answers as on the CPU."""
    box.machine.need_onnxruntime()
    from benchmarks.models import graphs
    from benchmarks.models.subjects import npy

    model = graphs.convnet().SerializeToString()
    name = box.deploy(bundles.onnx(box.folder, "convnet", model))
    twin = box.deploy(bundles.onnx(box.folder, "convnet-cpu", model, "cpu"))
    body = npy(compiled.picture())
    on_gpu = box.post(name, body, "application/x-npy").outputs["y"]
    on_cpu = box.post(twin, body, "application/x-npy").outputs["y"]
    [replica] = box.replicas(name)
    assert replica["device"] == box.machine.gpu.uuid, replica
    grown = box.machine.used_mib() - (box.machine.gpu.used_mib or 0.0)
    assert grown > len(model) / MIB, f"the weights are {len(model) / MIB:.0f} MiB, NVML {grown:.0f}"
    return f"NVML +{grown:.0f} MiB; largest difference {_difference(on_gpu, on_cpu):.1e}"


def resnet_onnx(box: Box) -> str:
    """Compare a ResNet-50 on ONNX Runtime with the same session in a bare loop."""
    box.machine.need_onnxruntime()
    from benchmarks.models import graphs
    from benchmarks.models.subjects import npy
    from tests.gpu.speed import beside_bare

    bundle = bundles.onnx(box.folder, "convnet", graphs.convnet().SerializeToString())
    body = npy(compiled.picture())
    bare = ("onnx", bundle / "model.onnx")
    return beside_bare(
        box, box.deploy(bundle), bare, body, "application/x-npy", compiled.BARE_SHARE
    )


def resnet_torch(box: Box) -> str:
    """Compare a ResNet-50 in a PyTorch handler with the same handler in a bare loop."""
    box.machine.need_torch()
    from tests.gpu.speed import beside_bare

    bundle = bundles.resnet(box.folder, "resnet")
    body = b'{"inputs": {"x": {"seed": 1}}}'
    return beside_bare(box, box.deploy(bundle), ("handler", bundle / "handler.py"), body)


CHECKS = (
    Check("inventory", "Every GPU is a device, described as NVML does", inventory),
    Check("handler", "A PyTorch handler runs on the GPU, with the CPU's answers", handler),
    Check("ledger", "The ledger covers the memory that NVML shows", ledger),
    Check("sharing", "Two functions share a GPU", sharing),
    Check("memory-back", "Memory is back after kill -9", memory_back),
    Check("waiting", "A function waits for its fair turn on a busy GPU", waiting),
    Check("quarantine", "A GPU whose memory is not back is quarantined", quarantine),
    Check("phases", "A cold start says where its time went", phases),
    Check("session", "ONNX Runtime's session is on CUDA, with the CPU's answers", session_on_cuda),
    Check("resnet-torch", "ResNet-50 in a PyTorch handler, beside a bare loop", resnet_torch),
    Check("resnet-onnx", "ResNet-50 on ONNX Runtime, beside a bare session", resnet_onnx),
    Check("resnet-fp16", "ResNet-50 in FP16, beside a bare session", compiled.resnet_fp16),
    Check("libraries", "A replica's libraries are reported", compiled.libraries),
    Check("metrics", "Metrics of GPUs have DCGM's names", compiled.metrics),
    Check("tensorrt", "TensorRT builds between calls, never in one", compiled.tensorrt),
    Check("standby", "A standby on the GPU takes a cold start", standby, {"FN_GPU_STANDBYS": "1"}),
    Check("swap", "A compiled model replaces a session under load", compiled.swap, compiled.SWAP),
)
