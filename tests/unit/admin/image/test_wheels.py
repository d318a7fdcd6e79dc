"""Tests of downloading wheels with pip for the base's Python and machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from admin.image import wheels
from admin.image.context import ImageError, own_checkout
from admin.image.wheels import Platform
from runtime_image.lock import parse
from tests.support.runtime_images import light_checkout, light_versions

DEBIAN = Platform((3, 11), "x86_64", (2, 36))


def values(command: list[str], option: str) -> list[str]:
    """Return every value given for the option."""
    return [after for word, after in pairwise(command) if word == option]


def script(text: str) -> list[str]:
    """Create a stand-in for pip: a Python program with its output and exit code."""
    return [sys.executable, "-c", text]


def test_a_download_is_for_the_base() -> None:
    """Only wheels are downloaded, for the base's Python, machine and glibc or older, of the listed
    hashes and nothing that they depend on."""
    [command] = wheels.download_commands("cpu", DEBIAN, Path("/listed"), Path("/to"))

    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert values(command, "--python-version") == ["3.11"]
    assert values(command, "--only-binary") == [":all:"]
    assert {"--require-hashes", "--no-deps"} < {*command}
    assert values(command, "--requirement") == ["/listed"]
    assert values(command, "--dest") == ["/to"]
    platforms = values(command, "--platform")
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64"} < {*platforms}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_an_image_has_locked_packages(kind: str) -> None:
    """The list has a pin with hashes for each requirement of the image and for pip, which the base
    may lack, whatever the machine: pip heeds markers of its own Python, not of the base's."""
    listed = wheels.requirements(kind, own_checkout())

    entries = {entry.name: entry for entry in parse(listed)}
    assert {*light_versions(kind), "pip"} <= {*entries}
    assert ("nvidia-cudnn-cu13" in entries) == (kind == "gpu")
    assert not [entry.name for entry in entries.values() if ";" in entry.text]


def test_a_lock_without_a_package_is_refused(tmp_path: Path) -> None:
    """A checkout whose lock lacks a package of its images is refused, with the remedy."""
    checkout = light_checkout(tmp_path)

    with pytest.raises(ImageError, match=r"requirements.lock has no pip: make lock"):
        wheels.requirements("cpu", checkout)


def test_an_older_base_takes_older_wheels_only() -> None:
    """No platform tag is newer than the base's glibc or of another machine."""
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
    """A base that wheels do not support, such as Alpine or a rare machine, is refused at once."""
    with pytest.raises(ImageError, match=reason):
        platform.tags()


def test_tensorrt_is_for_gpus() -> None:
    """TensorRT, which is not locked, comes by a command of its own: only for GPU images, in the
    requested major version, without what it depends on."""
    [locked, own] = wheels.download_commands("gpu", DEBIAN, Path("/listed"), Path("/to"), "10")

    assert own[-1] == "tensorrt-cu13-libs~=10.0"
    assert "--no-deps" in own
    assert "--require-hashes" not in own
    for kind, tensorrt in (("cpu", "10"), ("gpu", "")):
        commands = wheels.download_commands(kind, DEBIAN, Path("/listed"), Path("/to"), tensorrt)
        assert commands == [locked]


def test_every_wheel_is_told() -> None:
    """Wheels from an index are reported with their size, those from a folder by name."""
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
    """A failure has pip's last lines as reason, and names the settings."""
    text = "import sys; print('fine'); print('ERROR: no route', file=sys.stderr); sys.exit(1)"

    with pytest.raises(ImageError) as caught:
        wheels.download(script(text), lambda _: None)

    assert caught.value.message.startswith("pip could not download the wheels; its last lines:\n")
    assert "    ERROR: no route" in caught.value.message
    assert "PIP_INDEX_URL" in caught.value.__notes__[0]


def test_missing_tensorrt_is_reported() -> None:
    """If pip's index has no TensorRT, the error names the ways to get it."""
    text = "import sys; sys.exit('ERROR: Failed to build tensorrt-cu13-libs')"

    with pytest.raises(ImageError, match="could not download TensorRT") as caught:
        wheels.download(script(text), lambda _: None)

    assert "--wheels DIR" in caught.value.__notes__[0]


def test_a_full_disk_is_told() -> None:
    """On a full disk the advice is another folder, not another index."""
    text = "import sys; sys.exit('ERROR: [Errno 28] No space left on device')"

    with pytest.raises(ImageError, match="the disk is full") as caught:
        wheels.download(script(text), lambda _: None)

    assert "TMPDIR=" in caught.value.__notes__[0]


def test_a_python_without_pip_is_told() -> None:
    """An environment without pip is reported."""
    command = [sys.executable, "-S", "-I", "-m", "pip", "download"]

    with pytest.raises(ImageError, match="has no pip to download wheels with"):
        wheels.download(command, lambda _: None)


def test_an_interruption_ends_pip() -> None:
    """An interruption ends pip before it is raised."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    endless = "print('Processing /a/b.whl', flush=True)\nwhile True: input()"
    with pytest.raises(KeyboardInterrupt):
        wheels.download(
            script(endless.replace("input()", "__import__('signal').pause()")), interrupt
        )
