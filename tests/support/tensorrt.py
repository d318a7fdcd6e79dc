"""Stand-ins for TensorRT: libraries with its names and one of its functions, and their wheel."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from admin.image.tensorrt import LIBRARIES
from tests.support.nvml import board

SOURCE = "int getInferLibVersion(void) { return 101601; }\n"
FITTING = "tensorrt_cu13_libs-10.16.1.11-py2.py3-none-manylinux_2_28_x86_64.whl"


def wheel(folder: Path, name: str = FITTING, files: dict[str, bytes] | None = None) -> Path:
    """Write a wheel of this name with these files in tensorrt_libs; by default, empty libraries."""
    folder.mkdir(exist_ok=True)
    package, version, *tags = name.removesuffix(".whl").split("-")
    info = f"{package}-{version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        "Requires-Dist: nvidia-cuda-runtime-cu13\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {'-'.join(tags)}\n",
        f"{info}/RECORD": "",
    }
    content = dict.fromkeys(LIBRARIES, b"") if files is None else files
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in texts.items():
            archive.writestr(file, text)
        for file, data in content.items():
            archive.writestr(f"tensorrt_libs/{file}", data)
    return path


def libraries(folder: Path) -> dict[str, bytes]:
    """Compile the libraries, which need no other library; return their contents by name."""
    folder.mkdir(exist_ok=True)
    source = folder / "nvinfer.c"
    source.write_text(SOURCE)
    for name in LIBRARIES:
        command = [board.compiler(), "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name, source], check=True, capture_output=True)
    return {name: (folder / name).read_bytes() for name in LIBRARIES}
