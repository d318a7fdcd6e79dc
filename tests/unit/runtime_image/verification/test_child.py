"""The process that analyses a model, and the verdict for each way it can end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from runtime_image.contract.rows import RowVerdict
from runtime_image.verification.child import verdict_of

GIB = 2**30
GRAPH = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,4] x) => (float[n,4] y) { y = Add (x, w) }"""

HUNGRY = """
import resource, sys
from pathlib import Path
from runtime_image.verification.child import verdict_of
resource.setrlimit(resource.RLIMIT_DATA, (24 << 20, 24 << 20))
print(verdict_of(Path(sys.argv[1])).reason)
"""
LIMITS = """
import resource
from runtime_image.verification.rows import __main__ as child
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
try:
    child.main("/nowhere")
finally:
    names = ("RLIMIT_DATA", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE")
    print()
    print(*(resource.getrlimit(getattr(resource, name))[1] for name in names))
"""


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, body: bytes, length: int | None = None) -> bytes:
    """Return a length-delimited field that claims `length` bytes."""
    return varint(number << 3 | 2) + varint(len(body) if length is None else length) + body


def written(path: Path, weights: onnx.TensorProto) -> Path:
    model = onnx.parser.parse_model(GRAPH)
    model.graph.initializer.append(weights)
    path.write_bytes(model.SerializeToString())
    return path


def small(path: Path) -> Path:
    return written(path, onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [1.0] * 4))


def told_by(script: str, tmp_path: Path, timeout_s: float = 30.0) -> RowVerdict:
    """Return the verdict if the child runs `script` instead of the analysis."""
    return verdict_of(tmp_path / "model.onnx", timeout_s, [sys.executable, "-I", "-c", script])


def test_a_model_is_proven_by_a_process_of_its_own(tmp_path: Path) -> None:
    """The child process finds the package and returns the complete verdict."""
    assert verdict_of(small(tmp_path / "m.onnx")) == RowVerdict(True, True)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a", field(7, b"", 3 * GIB)])
def test_garbage_is_not_analysed(tmp_path: Path, content: bytes) -> None:
    """Garbage gives a reason, not an exception."""
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    verdict = verdict_of(path)
    assert (verdict.analysed, verdict.proven) == (False, False)
    assert verdict.reason.startswith("the file cannot be read: ")


def test_a_model_beyond_two_gigabytes_is_read_without_its_weights(tmp_path: Path) -> None:
    """protobuf would refuse the file. The weights are a sparse hole at its end."""
    path, count = tmp_path / "large.onnx", 600_000_000
    model = onnx.parser.parse_model(GRAPH.replace("[n,4]", f"[n,{count}]"))
    name = field(8, b"w") + b"\x10\x01" + b"\x08" + varint(count)
    tensor = name + field(9, b"", 4 * count)
    graph = model.graph.SerializeToString() + field(5, tensor, len(tensor) + 4 * count)
    model.ClearField("graph")
    path.write_bytes(model.SerializeToString() + field(7, graph, len(graph) + 4 * count))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 4 * count)
    assert verdict_of(path) == RowVerdict(True, True)


def test_data_in_other_files_is_not_read(tmp_path: Path) -> None:
    """The external weight file is not read and may even be missing."""
    weights = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=1)
    weights.external_data.add(key="location", value="not-there")
    assert verdict_of(written(tmp_path / "m.onnx", weights)) == RowVerdict(True, True)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the analysis was ended by signal 11"),
        ("raise SystemExit(3)", "the analysis ended with code 3"),
        ("print('[]')", "the analysis could not run: TypeError"),
        ("print('x' * 3)", "the analysis could not run: JSONDecodeError"),
        ("print('x' * 2**21)", "the analysis wrote more than"),
        (
            "import resource as r; r.setrlimit(r.RLIMIT_CPU, (1, 2))\nwhile True: pass",
            "the analysis used up its processor time",
        ),
    ],
)
def test_a_child_that_fails_has_not_analysed(tmp_path: Path, script: str, reason: str) -> None:
    """Each failure of the child has its reason and proves nothing."""
    verdict = told_by(script, tmp_path)
    assert (verdict.analysed, verdict.proven) == (False, False)
    assert verdict.reason.startswith(reason)


def test_a_child_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """The parent ends a child that exceeds the time limit."""
    verdict = told_by("import signal; signal.pause()", tmp_path, 0.05)
    assert verdict == RowVerdict(False, False, "the analysis took longer than 0.05 s")


def test_without_an_interpreter_nothing_is_raised(tmp_path: Path) -> None:
    """Failing to start the child gives a verdict, not an exception."""
    verdict = verdict_of(tmp_path / "m.onnx", command=["/nowhere/python"])
    assert not verdict.analysed
    assert verdict.reason.startswith("the analysis could not run: FileNotFoundError")


def test_an_inherited_limit_is_named_where_memory_ends(tmp_path: Path) -> None:
    """A replica's own memory limit applies to its child and is named in the reason."""
    path = small(tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, str(path)], capture_output=True, text=True, check=True
    )
    assert "ran out of memory; the limit of this process is 24 MiB" in done.stdout


def test_the_child_caps_itself_first() -> None:
    """The child caps its memory; a lower limit stays in force."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True
    )
    verdict, limits = done.stdout.splitlines()
    assert "No such file" in verdict
    assert limits.split() == [str(GIB), "5", str(2**20), "0"]
