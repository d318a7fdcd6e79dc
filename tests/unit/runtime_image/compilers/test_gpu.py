"""The first GPU, read from the driver."""

from __future__ import annotations

from typing import Any

import pytest

from runtime_image.compilers.gpu import DRIVER, NoGpu, architecture, first_gpu


class Driver:
    """Calls of libcuda.so.1, as in cuda.h, for one GPU; `fails` is the name of a call that does."""

    def __init__(self, name: str, count: int = 1, fails: str = "") -> None:
        self._name = name
        self._count = count
        self._fails = fails
        self.calls: list[str] = []

    def _code(self, call: str) -> int:
        self.calls.append(call)
        return 100 if call == self._fails else 0

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self._code("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._count
        return self._code("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return self._code("cuDeviceGet")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        assert device.value == 0
        name.value = self._name.encode()[: size - 1]
        return self._code("cuDeviceGetName")

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        assert device.value == 0
        size._obj.value = 9856 * 2**20
        return self._code("cuDeviceTotalMem")

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:
        assert (which, device.value) == (16, 0)
        value._obj.value = 16
        return self._code("cuDeviceGetAttribute")

    def cuDeviceComputeCapability(self, major: Any, minor: Any, device: Any) -> int:
        assert device.value == 0
        major._obj.value, minor._obj.value = 9, 0
        return self._code("cuDeviceComputeCapability")


def test_a_gpu_has_name_processors_and_memory() -> None:
    """The profile of a MIG slice is part of the name."""
    name = "NVIDIA H100 PCIe MIG 1g.10gb"

    assert first_gpu(lambda _library: Driver(name)) == f"{name}, 16 SM, 9856 MiB"


def test_a_gpu_has_an_architecture() -> None:
    """Major and minor compute capability, as ONNX Runtime writes them."""
    driver = Driver("x", fails="cuDeviceComputeCapability")

    assert architecture(lambda _library: Driver("x")) == "sm90"
    with pytest.raises(NoGpu, match="cuDeviceComputeCapability failed"):
        architecture(lambda _library: driver)


@pytest.mark.parametrize(
    "fails",
    [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceTotalMem",
        "cuDeviceGetAttribute",
    ],
)
def test_every_failed_call_is_a_reason(fails: str) -> None:
    """Nothing is called after a failure."""
    driver = Driver("x", fails=fails)

    with pytest.raises(NoGpu, match=f"{fails} failed with CUDA error 100"):
        first_gpu(lambda _library: driver)

    assert driver.calls[-1] == fails


def test_a_driver_without_a_gpu_gets_no_further_calls() -> None:
    """A count of 0 is no error of the driver."""
    driver = Driver("x", count=0)

    with pytest.raises(NoGpu, match="the NVIDIA driver shows no GPU"):
        first_gpu(lambda _library: driver)

    assert driver.calls == ["cuInit", "cuDeviceGetCount"]


def test_a_machine_without_a_driver_has_no_gpu() -> None:
    """The real library is looked for by its name."""
    asked: list[str] = []

    def load(library: str) -> Any:
        asked.append(library)
        raise OSError("libcuda.so.1: cannot open shared object file")

    with pytest.raises(NoGpu, match=r"there is no NVIDIA driver here \(libcuda"):
        first_gpu(load)

    assert asked == [DRIVER]
