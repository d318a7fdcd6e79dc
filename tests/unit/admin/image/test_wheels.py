"""pip on this machine downloads for the base's Python and machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from admin.image import wheels
from admin.image.context import ImageError
from admin.image.wheels import Platform

DEBIAN = Platform((3, 11), "x86_64", (2, 36))


def values(command: list[str], option: str) -> list[str]:
    """What the option is given, each time."""
    return [after for word, after in pairwise(command) if word == option]


def script(text: str) -> list[str]:
    """Stands for pip: a Python program that writes and ends as pip does."""
    return [sys.executable, "-c", text]


def test_a_download_is_for_the_base() -> None:
    """Its Python, its machine, its glibc and everything older, wheels only, as constrained."""
    command = wheels.download_command("cpu", DEBIAN, Path("/co"), Path("/to"))

    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert values(command, "--python-version") == ["3.11"]
    assert values(command, "--only-binary") == [":all:"]
    assert values(command, "--constraint") == ["/co/constraints.txt"]
    assert values(command, "--requirement") == ["/co/runtime_image/requirements/cpu.txt"]
    assert values(command, "--dest") == ["/to"]
    platforms = values(command, "--platform")
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64"} < {*platforms}
    assert command[-1] == "pip"


def test_an_older_base_takes_older_wheels_only() -> None:
    """No tag is newer than its glibc, or of another machine."""
    tags = Platform((3, 12), "aarch64", (2, 28)).tags()

    assert tags[0] == "manylinux_2_28_aarch64"
    assert tags[-2:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64"]


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (Platform((3, 11), "x86_64", (0, 0)), "x86_64 with a libc other than glibc"),
        (Platform((3, 11), "riscv64", (2, 36)), "riscv64 with glibc 2.36"),
    ],
)
def test_a_base_without_wheels_is_refused(platform: Platform, reason: str) -> None:
    """Alpine and rare machines are told at once."""
    with pytest.raises(ImageError, match=reason):
        platform.tags()


def test_tensorrt_is_for_gpus() -> None:
    """The major version asked for, and only where there is something to compute on."""
    assert wheels.needs("gpu", "10") == ["pip", "tensorrt-cu13-libs~=10.0"]
    assert wheels.needs("cpu", "10") == ["pip"]
    assert wheels.needs("gpu", "") == ["pip"]


def test_every_wheel_is_told() -> None:
    """Those from an index with their size, those from a folder by their name."""
    told: list[str] = []
    lines = (
        "Collecting numpy",
        "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)",
        "Processing /opt/w/packaging-26.3-py3-none-any.whl (from onnxruntime->-r x (line 3))",
    )

    wheels.download(script(f"print({chr(10).join(lines)!r})"), told.append)

    assert told == [
        "numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)",
        "packaging-26.3-py3-none-any.whl",
    ]


def test_a_failure_shows_pips_last_lines() -> None:
    """What pip said is the reason, and what may be set is named."""
    text = "import sys; print('fine'); print('ERROR: no route', file=sys.stderr); sys.exit(1)"

    with pytest.raises(ImageError) as caught:
        wheels.download(script(text), lambda _: None)

    assert caught.value.message.startswith("pip could not download the wheels; its last lines:\n")
    assert "    ERROR: no route" in caught.value.message
    assert "PIP_INDEX_URL" in caught.value.__notes__[0]


def test_a_full_disk_is_told() -> None:
    """The way out is another folder, not another index."""
    text = "import sys; sys.exit('ERROR: [Errno 28] No space left on device')"

    with pytest.raises(ImageError, match="the disk is full") as caught:
        wheels.download(script(text), lambda _: None)

    assert "TMPDIR=" in caught.value.__notes__[0]


def test_a_python_without_pip_is_told() -> None:
    """An environment may have been made without it."""
    command = [sys.executable, "-S", "-I", "-m", "pip", "download"]

    with pytest.raises(ImageError, match="has no pip to download wheels with"):
        wheels.download(command, lambda _: None)


def test_whoever_interrupts_takes_pip_along() -> None:
    """The process is gone when the error arrives."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    endless = "print('Processing /a/b.whl', flush=True)\nwhile True: input()"
    with pytest.raises(KeyboardInterrupt):
        wheels.download(
            script(endless.replace("input()", "__import__('signal').pause()")), interrupt
        )
