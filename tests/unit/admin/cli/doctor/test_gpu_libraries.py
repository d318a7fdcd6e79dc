"""Tests of the checks of CUDA, cuDNN and TensorRT, over answers of stand-in probes."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import pytest

from admin.cli.doctor import gpu_libraries
from admin.cli.doctor.gpu_libraries import Answer, ask_container, ask_process, checks, installed
from tests.support import runtime_images

DRIVER = {"devices": 2, "libcuda": {"version": "13.0", "file": "/lib/libcuda.so.580.65"}}
CUDA = {
    "libcudart": {"version": "13.5", "file": "/v/libcudart.so.13"},
    "libcublas": {"version": "13.10.0", "file": "/v/libcublas.so.13"},
    "libcudnn": {"version": "9.28.0", "file": "/v/libcudnn.so.9"},
}
TENSORRT = {"libnvinfer": {"version": "10.16.1", "file": "/v/libnvinfer.so.10"}}
WHOLE: dict[str, Any] = {"packages": {}, "driver": DRIVER, "cuda": CUDA, "tensorrt": TENSORRT}


def shown(parts: dict[str, Any], ended: str = "") -> list[tuple[str, str, str]]:
    """Return level, name and text of the checks of an answer."""
    found = checks(Answer(parts, ended), "", "get them")
    return [(each.level, each.name, each.found) for each in found]


def script(*lines: str, end: str = "") -> list[str]:
    """Return a stand-in for the probe that prints these lines, and then ends so."""
    return [sys.executable, "-c", f"import os\nfor x in {lines!r}: print(x, flush=True)\n{end}"]


def line(part: str, content: dict[str, Any]) -> str:
    """Return the probe's line for a part."""
    return json.dumps({"part": part, **content})


def test_loaded_libraries_are_named() -> None:
    """Each library is reported with its version and its file."""
    assert shown(WHOLE) == [
        (
            "ok",
            "cuda",
            "libcudart 13.5 (/v/libcudart.so.13), libcublas 13.10.0 (/v/libcublas.so.13), "
            "driver 13.0",
        ),
        ("ok", "cudnn", "libcudnn 9.28.0 (/v/libcudnn.so.9)"),
        ("ok", "tensorrt", "libnvinfer 10.16.1 (/v/libnvinfer.so.10)"),
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cuda": {"error": "no CUDAExecutionProvider"}}, [("fail", "cuda", "no CUDAExec")]),
        ({"cuda": {"error": "CUDA failure 2: Out of memory"}}, [("warn", "cuda", "CUDA failure")]),
        (
            {"cuda": {name: CUDA[name] for name in ("libcudart", "libcublas")}},
            [("ok", "cuda", "libcudart"), ("warn", "cudnn", "not loaded: models with conv"), None],
        ),
        (
            {"tensorrt": {"error": "TensorRT 10 cannot be loaded"}},
            [None, None, ("warn", "tensorrt", "not used: TensorRT 10 cannot be loaded")],
        ),
        (
            {"driver": {"devices": 0}, "cuda": {"error": "no driver"}},
            [("fail", "cuda", "a replica sees no GPU: no driver")],
        ),
    ],
)
def test_missing_libraries_are_named(
    change: dict[str, Any], expected: list[tuple[str, str, str] | None]
) -> None:
    """A provider that cannot be used fails; a missing cuDNN or TensorRT warns; each has a
    remedy."""
    found = checks(Answer({**WHOLE, **change}), "", "get them")

    assert len(found) == len(expected)
    for check, wanted in zip(found, expected, strict=True):
        if wanted is not None:
            assert (check.level, check.name) == wanted[:2]
            assert check.found.startswith(wanted[2])
            assert check.todo or check.level == "ok"


def test_a_crash_keeps_earlier_parts() -> None:
    """If TensorRT ends the probe with a signal, CUDA's part is kept and the signal is named; lines
    of libraries between the parts are ignored."""
    before = (line("driver", DRIVER), "Failed to load libx.so", "[1]", line("cuda", CUDA))
    answer = ask_process(script(*before, end="os.kill(os.getpid(), 11)"))

    assert answer.ended == "ended by SIGSEGV"
    assert set(answer.parts) == {"driver", "cuda"}
    assert [(each.level, each.name) for each in checks(answer, "image", "")] == [
        ("ok", "image cuda"),
        ("ok", "image cudnn"),
        ("fail", "image tensorrt"),
    ]


def test_a_probe_that_hangs_is_ended() -> None:
    """A probe has a time limit; what it reported before is used."""
    began = time.monotonic()
    answer = ask_process(
        script(line("driver", DRIVER), end="import time; time.sleep(60)"), seconds=1
    )

    assert time.monotonic() - began < 30
    assert shown(answer.parts, answer.ended) == [("fail", "cuda", "no answer within 1 s")]


def test_a_missing_interpreter_is_a_finding() -> None:
    """A probe that cannot start, or fails, is reported with the reason."""
    assert "No such file" in ask_process(["/nonexistent"]).ended
    failed = ask_process([sys.executable, "-c", "raise SystemExit('no module')"])
    assert failed.ended == "exit code 1: no module"


@pytest.mark.slow
def test_the_probe_of_this_interpreter_ends_without_a_gpu() -> None:
    """Without a GPU the real probe reports so; TensorRT is not touched."""
    answer = ask_process()

    assert answer.ended == ""
    assert set(answer.parts) == {"packages", "driver", "cuda", "tensorrt"}
    assert "onnxruntime" in str(answer.parts["packages"])
    if not answer.parts["driver"]["devices"]:
        [check] = checks(answer, "", "get them")
        assert (check.level, check.todo) == ("fail", "get them")
        assert answer.parts["tensorrt"]["error"]


def test_both_distributions_are_reported() -> None:
    """onnxruntime beside onnxruntime-gpu fails, with the command that leaves one; one alone, or
    none, is no finding."""

    def has(*names: str) -> list[Any]:
        def version(name: str) -> str:
            if name not in names:
                raise importlib.metadata.PackageNotFoundError(name)
            return "1.31.1"

        return list(installed(version, "/v/python"))

    [both] = has("onnxruntime", "onnxruntime-gpu")
    assert (both.level, both.found) == (
        "fail",
        "onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 have the same files",
    )
    assert both.todo.startswith(
        "/v/python -m pip uninstall -y onnxruntime onnxruntime-gpu && /v/python -m pip install "
    )
    assert has("onnxruntime") == has("onnxruntime-gpu") == has() == []


@pytest.mark.docker
@pytest.mark.slow
def test_an_engine_without_gpus_is_a_finding() -> None:
    """If the engine cannot pass a GPU, its reason is reported; no container is left."""
    url, image = runtime_images.given("FN_TEST_DOCKER"), runtime_images.given("FN_TEST_BASE")

    answer = ask_container(url, image, seconds=60)

    assert answer.parts == {}
    assert "could not select device driver" in answer.ended
    with runtime_images.connected() as client:
        left = client.containers(all=True, filters={"ancestor": image})
    assert not any("runtime_image.engines.probe" in each["Command"] for each in left)


def test_a_containers_signal_is_named() -> None:
    """The engine reports a signal as 128 + its number (bash(1), and Docker alike)."""
    assert gpu_libraries.ended(139, []) == "ended by SIGSEGV"
    assert gpu_libraries.ended(-9, []) == "ended by SIGKILL"
    assert gpu_libraries.ended(1, []) == "exit code 1"
    assert gpu_libraries.ended(0, ["a warning"]) == ""
