"""TensorRT in the gpu image: which wheel is installed, and whether an image has the libraries.

ONNX Runtime's provider is linked to libnvinfer.so.10, so 10 is the only major version. TensorRT is
not on the public package index: its wheels come from the user, from an index of pip's settings, or
the base image has the libraries.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from admin.image.containers import dotted, run_python
from admin.image.context import image_error
from admin.image.wheels import TENSORRT_WHEEL, Platform

if TYPE_CHECKING:
    from docker import APIClient

MAJOR: Final = "10"
LIBRARIES: Final = tuple(
    f"lib{name}.so.{MAJOR}" for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser")
)
"""What ONNX Runtime's TensorRT provider needs, in order of dependence."""
_WHEEL: Final = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl")
"""Name, version, optional build number, and tags of Python, ABI and platform (PEP 427)."""
_TENSORRT: Final = re.compile(r"tensorrt([-_.].*)?", re.IGNORECASE)
CODE: Final = f"""\
import ctypes, json
found = {{"version": 0, "errors": []}}
for name in {LIBRARIES!r}:
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        found["errors"].append(str(error))
        continue
    if name.startswith("libnvinfer."):
        found["version"] = library.getInferLibVersion()
print(json.dumps(found))
"""
"""Loads the libraries and asks for a constant: nothing else of TensorRT is safe without a GPU."""
HELP: Final = (
    "fnctl image build gpu --tensorrt 10 --wheels DIR  with the wheel tensorrt_cu13_libs in DIR,"
    "  or --base IMAGE  with an image that has TensorRT 10 and Python"
)


def find_wheel(folder: Path, wheels: list[Path], platform: Platform) -> Path:
    """Return the newest wheel of TensorRT's libraries among `wheels` that fits the base image.

    Raises ImageError with the reason against each wheel of TensorRT in `folder`.
    """
    fitting: list[tuple[tuple[int, ...], Path]] = []
    reasons: list[str] = []
    for path in wheels:
        if not _TENSORRT.fullmatch(path.name.partition("-")[0]):
            continue
        if reason := why_not(path, platform):
            reasons.append(f"{path.name}: {reason}")
        else:
            fitting.append((_numbers(path.name.split("-")[1]), path))
    if not fitting:
        expected = f"expected {TENSORRT_WHEEL}-{MAJOR}.*.whl for {platform.machine}"
        found = "got none of these wheels" if reasons else "got no wheel of TensorRT"
        raise image_error(f"no TensorRT in {folder}: {expected}, {found}", tail=reasons, todo=HELP)
    return max(fitting)[1]


def why_not(path: Path, platform: Platform) -> str:
    """Return why a wheel of TensorRT does not give the base image its libraries, "" if it does."""
    parts = _WHEEL.fullmatch(path.name)
    if parts is None:
        return "its name is not that of a wheel"
    name, version, python, abi, target = parts.groups()
    if reason := _wrong_name(re.sub(r"[-_.]+", "_", name).lower()):
        return reason
    if version.partition(".")[0] != MAJOR:
        return f"version {version}, expected {MAJOR}.x: ONNX Runtime loads {LIBRARIES[0]}"
    major, minor = platform.python
    if not {"py3", f"py{major}{minor}", f"cp{major}{minor}"} & {*python.split(".")}:
        return f"for Python {python}, the base image has {dotted(platform.python)}"
    if not {"none", "abi3", f"cp{major}{minor}"} & {*abi.split(".")}:
        return f"for the ABI {abi}, the base image has cp{major}{minor}"
    if not {f"linux_{platform.machine}", *platform.tags()} & {*target.split(".")}:
        libc = f"glibc {dotted(platform.glibc)}"
        return f"for {target}, the base image is {platform.machine} with {libc}"
    return _wrong_content(path)


def _wrong_name(name: str) -> str:
    if name == TENSORRT_WHEEL:
        return ""
    if "cu12" in name or "cu11" in name:
        return "for another CUDA, expected CUDA 13 (cu13)"
    return f"it has no libraries, they are in {TENSORRT_WHEEL}"


def _wrong_content(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as wheel:
            files = {name.rpartition("/")[2] for name in wheel.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        return f"it cannot be read: {error}"
    missing = [name for name in LIBRARIES if name not in files]
    return f"it has no {' and no '.join(missing)}" if missing else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def probe(client: APIClient, image: str, build: str) -> tuple[str, list[str]]:
    """Load TensorRT's libraries in a container of `image`.

    Returns their version, and why one could not be loaded. Raises docker-py's errors.
    """
    code, output = run_python(client, image, CODE, build)
    lines = output.splitlines()
    try:
        found = json.loads(lines[-1])
        return version_text(int(found["version"])), [str(error) for error in found["errors"]]
    except (IndexError, KeyError, TypeError, ValueError):
        last = f": {lines[-1]}" if lines else ""
        return "", [f"the attempt ended with exit code {code}{last}"]


def check_loads(client: APIClient, image: str, build: str) -> str:
    """Return the version of TensorRT in a built image. Raises ImageError if it cannot be loaded."""
    version, errors = probe(client, image, build)
    if errors:
        raise image_error("TensorRT cannot be loaded in the image:", tail=errors, todo=HELP)
    return version


def version_text(number: int) -> str:
    """Return a version as NvInferVersion.h encodes it since TensorRT 10: 101601 is 10.16.1."""
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
