"""Tests of TensorRT in the gpu image: the choice of a wheel, and images over stand-in libraries."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from docker import APIClient

from admin.image import tensorrt
from admin.image.build import build
from admin.image.context import ImageError, wheels_in
from admin.image.wheels import Platform
from tests.support import runtime_images
from tests.support import tensorrt as stand_ins
from tests.support.doses import amount

BASE = Platform((3, 12), "x86_64", (2, 36))
CU13 = "tensorrt_cu13_libs"
LIBRARY_PATH = "/opt/fngate/tensorrt_libs:/usr/local/nvidia/lib64"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (stand_ins.FITTING, ""),
        (f"{CU13}-10.13.2.6-cp312-cp312-linux_x86_64.whl", ""),
        (f"{CU13}-10.16.1.11-1-py3-none-manylinux_2_28_x86_64.manylinux2014_x86_64.whl", ""),
        (f"{CU13}-11.4.0.106-py3-none-linux_x86_64.whl", "version 11.4.0.106, expected 10.x: ONNX"),
        (f"{CU13}-1.0.0-py3-none-linux_x86_64.whl", "version 1.0.0, expected 10.x"),
        (f"{CU13}-10.16.1.11-cp311-none-linux_x86_64.whl", "for Python cp311, .* has 3.12"),
        (f"{CU13}-10.16.1.11-cp312-cp311-linux_x86_64.whl", "for the ABI cp311, .* has cp312"),
        (f"{CU13}-10.16.1.11-py3-none-manylinux_2_38_x86_64.whl", "x86_64 with glibc 2.36"),
        (f"{CU13}-10.16.1.11-py3-none-manylinux_2_28_aarch64.whl", "aarch64, the base image is"),
        (f"{CU13}-10.16.1.11-py3-none-win_amd64.whl", "for win_amd64"),
        ("tensorrt_cu12_libs-10.16.1.11-py3-none-linux_x86_64.whl", "for another CUDA"),
        ("tensorrt_cu13_bindings-10.16.1.11-cp312-none-linux_x86_64.whl", "they are in tensorrt_c"),
        ("tensorrt-10.16.1.11-cp312-none-linux_x86_64.whl", "it has no libraries"),
        (f"{CU13}-10.16.1.11.whl", "not that of a wheel"),
    ],
)
def test_a_wheel_must_fit_the_base(tmp_path: Path, name: str, reason: str) -> None:
    """Name, version, CUDA, Python, ABI and platform of a wheel must fit; the reason names what does
    not."""
    path = tmp_path / name
    if not reason:
        stand_ins.wheel(tmp_path, name)

    found = tensorrt.why_not(path, BASE)

    assert re.search(reason, found) if reason else found == "", found


def test_a_wheel_must_have_the_libraries(tmp_path: Path) -> None:
    """A file that only has the right name is refused before a build."""
    empty = stand_ins.wheel(tmp_path, files={"libnvinfer.so.11": b""})
    missing = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
    assert tensorrt.why_not(empty, BASE) == f"it has no {' and no '.join(missing)}"

    empty.write_bytes(b"no archive")
    assert tensorrt.why_not(empty, BASE).startswith("it cannot be read: ")


def test_the_newest_fitting_wheel_is_chosen(tmp_path: Path) -> None:
    """Versions are compared as numbers; other wheels are ignored."""
    names = [
        f"{CU13}-{version}-py3-none-linux_x86_64.whl"
        for version in ("10.9.0.1", "10.16.1.11", "11.4.0.106")
    ]
    for name in [*names, "numpy-2.4.6-cp312-cp312-linux_x86_64.whl"]:
        stand_ins.wheel(tmp_path, name)

    assert tensorrt.find_wheel(tmp_path, wheels_in(tmp_path), BASE).name == names[1]


def test_no_fitting_wheel_is_reported(tmp_path: Path) -> None:
    """The error has the reason against each wheel of TensorRT, and the remedy."""
    stand_ins.wheel(tmp_path, f"{CU13}-11.4.0.106-py3-none-linux_x86_64.whl")
    stand_ins.wheel(tmp_path, "numpy-2.4.6-cp312-cp312-linux_x86_64.whl")

    with pytest.raises(ImageError, match=r"expected tensorrt_cu13_libs-10.*got none of") as caught:
        tensorrt.find_wheel(tmp_path, wheels_in(tmp_path), BASE)

    lines = caught.value.message.splitlines()
    assert len(lines) == 2
    assert "11.4.0.106-py3-none-linux_x86_64.whl: version 11.4.0.106, expected 10.x" in lines[1]
    assert "--wheels DIR" in caught.value.__notes__[0]
    with pytest.raises(ImageError, match="got no wheel of TensorRT"):
        tensorrt.find_wheel(tmp_path, [], BASE)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_image_gets_tensorrt_from_a_wheel_or_its_base(
    docker_client: APIClient, tmp_path: Path
) -> None:
    """The libraries come from --wheels, or the base has them; both are proven by loading them."""
    name = uuid.uuid4().hex
    # The second build takes as long as the first.
    tags = [f"fngate-test:{name}-{way}" for way in amount(("wheel",), ("wheel", "base"))]
    folder = tmp_path / "tensorrt"
    stand_ins.wheel(folder, files=stand_ins.libraries(tmp_path / "libraries"))
    (tmp_path / "checkout").mkdir()
    options = {
        "kind": "gpu",
        "checkout": runtime_images.light_checkout(tmp_path / "checkout"),
        "wheelhouse": runtime_images.light_wheelhouse(tmp_path / "wheels", "gpu"),
        "tensorrt": "10",
    }
    said: list[str] = []
    try:
        made = build(runtime_images.order(tags[0], tensorrt_wheels=folder, **options), said.append)
        # This image has the libraries, so it is a base that has them; its wheelhouse has none.
        for tag in tags[1:]:
            again = build(runtime_images.order(tag, base=tags[0], **options), said.append)
            assert again.tensorrt == "10.16.1"
            assert any("the base has TensorRT 10.16.1" in line for line in said)
        for tag in tags:
            variables = docker_client.inspect_image(tag)["Config"]["Env"]
            assert f"LD_LIBRARY_PATH={LIBRARY_PATH}" in variables
        assert tensorrt.probe(docker_client, tags[0], uuid.uuid4().hex) == ("10.16.1", [])
    finally:
        for tag in reversed(tags):
            runtime_images.remove(docker_client, tag)

    assert made.tensorrt == "10.16.1"


@pytest.mark.docker
@pytest.mark.slow
def test_an_image_without_tensorrt_is_refused(docker_client: APIClient, tmp_path: Path) -> None:
    """An image without the libraries is no image with TensorRT; the error names the missing file.
    A wheelhouse without them is refused before the build."""
    base = runtime_images.given("FN_TEST_BASE")

    with pytest.raises(ImageError, match="cannot be loaded in the image") as caught:
        tensorrt.check_loads(docker_client, base, uuid.uuid4().hex)
    assert "libnvinfer.so.10: cannot open shared object file" in caught.value.message

    wheels = runtime_images.light_wheelhouse(tmp_path / "wheels", "gpu")
    order = runtime_images.order("fngate-test:never", kind="gpu", wheelhouse=wheels, tensorrt="10")
    with pytest.raises(
        ImageError, match=r"no TensorRT in .*wheels: expected tensorrt_cu13_libs-10"
    ):
        build(order, lambda _: None)
