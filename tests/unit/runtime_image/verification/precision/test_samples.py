"""Samples of [optimise]: what is read, how it is split, and what is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_image.contract.precision import CALIBRATION_MIN, JUDGED_MIN
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.verification.precision import samples as reader
from runtime_image.verification.precision.samples import (
    CALIBRATION_MAX,
    JUDGED_MAX,
    SamplesError,
    read,
    split,
    synthetic,
)

PICTURES = TensorSpec("x", "FP32", (DYNAMIC, 2))
FLAGS = TensorSpec("flag", "BOOL", (DYNAMIC,))
ROWS = np.arange(200, dtype=np.float32).reshape(100, 2)


def signature(*inputs: TensorSpec) -> Signature:
    return Signature("tensors", inputs or (PICTURES,), ())


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez_compressed(folder / "s.npz", **arrays)
    return folder / "s.npz"


def member(folder: Path, content: bytes, name: str = "x.npy", **changes: Any) -> Path:
    """Write an archive with one member."""
    with zipfile.ZipFile(folder / "s.npz", "w", **changes) as archive:
        archive.writestr(name, content)
    return folder / "s.npz"


def npy(header: str, data: bytes = b"") -> bytes:
    """Return an npy file with any header."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def test_samples_are_split_at_random_but_always_equally(tmp_path: Path) -> None:
    """Every sample is used once. A file sorted by class calibrates and judges with all classes."""
    found = read(saved(tmp_path, x=ROWS), signature())
    again = read(tmp_path / "s.npz", signature())

    assert sorted((*found.calibration, *found.judged)) == list(range(100))
    assert (found.calibration, found.judged) == (again.calibration, again.judged)
    assert len(found.calibration) >= CALIBRATION_MIN
    assert len(found.judged) >= JUDGED_MIN
    assert max(found.calibration[:CALIBRATION_MIN]) > 50
    assert found.feed(7)["x"].tolist() == [[14.0, 15.0]]
    assert [feed["x"][0, 0] for feed in found.feeds((1, 0))] == [2.0, 0.0]


def test_copies_of_a_sample_count_once(tmp_path: Path) -> None:
    """A row that calibrated a candidate does not judge it, wherever else it is in the file. Rows
    that differ in one input alone are different."""
    names = np.array([f"n{number % 50}" for number in range(400)])
    inputs = (PICTURES, TensorSpec("name", "BYTES", (DYNAMIC,)))
    rows = np.tile(ROWS, (4, 1))

    found = read(saved(tmp_path, x=rows), signature())
    both = read(saved(tmp_path, x=np.zeros((400, 2), np.float32), name=names), signature(*inputs))

    used = np.concatenate([feed["x"] for feed in found.feeds((*found.calibration, *found.judged))])
    assert len(used) == len(np.unique(used, axis=0)) == 100
    assert (len(found.calibration), len(found.judged)) == (33, 67)
    assert (len(both.calibration), len(both.judged)) == (0, 50)


@pytest.mark.parametrize(
    ("count", "calibration", "judged"),
    [
        (CALIBRATION_MIN + JUDGED_MIN - 1, 0, CALIBRATION_MIN + JUDGED_MIN - 1),
        (CALIBRATION_MIN + JUDGED_MIN, CALIBRATION_MIN, JUDGED_MIN),
        (10_000, CALIBRATION_MAX, JUDGED_MAX),
    ],
)
def test_too_few_samples_only_judge(count: int, calibration: int, judged: int) -> None:
    """Static quantisation needs both parts; others are judged with all samples, up to a limit."""
    first, second = split(count)

    assert (len(first), len(second)) == (calibration, judged)
    assert not set(first) & set(second)


def test_a_fixed_batch_is_one_sample(tmp_path: Path) -> None:
    """A model that takes two rows at once has a sample for every two rows; another input with one
    row per run has as many samples."""
    inputs = (TensorSpec("x", "FP32", (2, 2)), FLAGS)
    found = read(saved(tmp_path, x=ROWS, flag=np.ones(50, bool)), signature(*inputs))

    assert found.feed(1)["x"].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert found.feed(49)["flag"].shape == (1,)
    assert len(found.calibration) + len(found.judged) == 50


def test_a_sample_of_an_unknown_rank_is_a_row(tmp_path: Path) -> None:
    """The first axis has the samples, as for a dynamic one; a scalar example stays as it is."""
    unknown = signature(TensorSpec("x", "FP32", None))

    found = read(saved(tmp_path, x=ROWS), unknown)
    made = synthetic(unknown, {"x": np.float32(3)})

    assert found.feed(1)["x"].tolist() == [[2.0, 3.0]]
    assert [float(one["x"]) for one in made.feeds(made.judged)] == [3.0] * len(made.judged)
    with pytest.raises(SamplesError, match=r"expected FP32 of any shape with samples"):
        read(saved(tmp_path, x=np.float32(3)), unknown)


@pytest.mark.parametrize("texts", [["a", "ü"], [b"a", "ü".encode()]])
def test_strings_become_objects(tmp_path: Path, texts: list[Any]) -> None:
    """An .npz without pickles holds strings of one width; ONNX Runtime takes objects."""
    inputs = TensorSpec("x", "BYTES", (DYNAMIC,))

    found = read(saved(tmp_path, x=np.array(texts)), signature(inputs))

    assert found.feed(1)["x"].dtype == object
    assert found.feed(1)["x"].tolist() == ["ü"]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"y": ROWS}, r"expected one array per input, \['x'\], got \['y'\]"),
        ({"x": ROWS, "more": ROWS}, "expected one array per input"),
        ({"x": ROWS.astype(np.float64)}, r"input x: expected FP32 \[\?, 2\], got float64"),
        ({"x": ROWS.astype(">f4")}, "expected FP32"),
        ({"x": ROWS.reshape(-1)}, r"samples on the first axis, got \[200\]"),
        ({"x": ROWS.reshape(-1, 4)}, r"got \[50, 4\]"),
        ({"x": ROWS[:0]}, r"got \[0, 2\]"),
        ({"x": np.array([[{}, {}]], dtype=object)}, "expected FP32"),
    ],
)
def test_arrays_must_fit_the_inputs(tmp_path: Path, arrays: dict[str, Any], reason: str) -> None:
    """The error names the input, what was expected and what came. Objects are never unpickled."""
    with pytest.raises(SamplesError, match=reason):
        read(saved(tmp_path, **arrays), signature())


def test_inputs_must_have_equal_numbers_of_samples(tmp_path: Path) -> None:
    """A shorter array would shift the pairs."""
    path = saved(tmp_path, x=ROWS, flag=np.ones(99, bool))

    with pytest.raises(SamplesError, match=r"equal numbers of samples, got rows x: 100, flag: 99"):
        read(path, signature(PICTURES, FLAGS))
    with pytest.raises(SamplesError, match="got rows x: 99"):
        read(saved(tmp_path, x=ROWS[:99]), signature(TensorSpec("x", "FP32", (2, 2))))


HUGE = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 2)}", bytes(16))
PICKLE = npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 2)}", b"cos\nsystem\n(S'x'\ntR.")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "magic"),
        (b"no array", "magic"),
        (HUGE, "claims 8000000000000 bytes and has another number"),
        (PICKLE, "expected FP32"),
        (npy("{'descr': '<f4'}"), "Header does not contain the correct keys"),
        (npy("__import__('os').abort()"), "malformed node|Cannot parse header"),
        (b"\x93NUMPY\x03\x00" + bytes(8), "npy version"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}"), "expected FP32"),
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """Nothing is reserved, evaluated or unpickled because a header says so."""
    with pytest.raises(SamplesError, match=reason):
        read(member(tmp_path, content), signature())


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: Any) -> None:
    """The claimed size is checked first; a stream that expands to more ends at its claim."""
    monkeypatch.setattr(reader, "ARRAYS_BYTES_MAX", 10_000)
    bomb = member(tmp_path, bytes(20_000), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(SamplesError, match="its arrays have 20000 bytes, the limit is 10000"):
        read(bomb, signature())

    content = bytearray(bomb.read_bytes())
    for at in (content.find(b"PK\x01\x02") + 24, 22):  # the claims of directory and member
        content[at : at + 4] = struct.pack("<I", 1000)
    bomb.write_bytes(content)
    with pytest.raises(SamplesError, match=r"s\.npz cannot be read: Bad CRC-32|magic"):
        read(bomb, signature())


def test_unknown_archives_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    """The refusal names another format, a file that is too large, and another compression."""
    (tmp_path / "s.npz").write_bytes(b"no archive")
    with pytest.raises(SamplesError, match=r"s\.npz: expected an archive .* got 10 bytes"):
        read(tmp_path / "s.npz", signature())
    with pytest.raises(SamplesError, match="compressed by an unknown method"):
        read(member(tmp_path, npy(""), compression=zipfile.ZIP_LZMA), signature())
    with pytest.raises(SamplesError, match=r"other\.npz cannot be read: .*No such file"):
        read(tmp_path / "other.npz", signature())
    monkeypatch.setattr(reader, "FILE_BYTES_MAX", 10)
    with pytest.raises(SamplesError, match=r"s\.npz has \d+ bytes, the limit is 10"):
        read(saved(tmp_path, x=ROWS), signature())


def changed(content: bytes, random: np.random.Generator, values: bytes) -> bytes:
    """Return the content with some bytes replaced, and in half of the cases cut."""
    made = bytearray(content)
    for at in random.integers(0, len(made), random.integers(1, 6)):
        made[at] = values[random.integers(0, len(values))]
    return bytes(made[: random.integers(0, 2 * len(made))])


def test_any_changed_archive_is_refused_or_read(tmp_path: Path) -> None:
    """Neither damaged archives nor damaged headers end in another exception."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=ROWS)
    header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100, 2)}")
    random = np.random.default_rng(5)
    results = []
    for turn in range(600):
        path = tmp_path / "s.npz"
        if turn % 2:
            path.write_bytes(changed(buffer.getvalue(), random, bytes(range(256))))
        else:
            member(tmp_path, changed(header, random, b"()[]{}'\",:<f4 \\\n#Truex") + ROWS.tobytes())
        try:
            results.append(read(path, signature()).feed(0)["x"].shape)
        except SamplesError:
            results.append(())
    assert set(results) == {(), (1, 2)}
    assert results.count(()) > 400


def test_synthetic_samples_only_judge() -> None:
    """They are the example and variants of it, and never calibrate: their range says nothing about
    real inputs."""
    example = {"x": np.array([[3.0, 4.0]], np.float32)}

    found = synthetic(signature(), example)

    assert (found.source, found.calibration) == ("synthetic", ())
    assert len({found.feed(number)["x"].tobytes() for number in found.judged}) == reader.SYNTHETIC
    assert np.array_equal(found.feed(0)["x"], example["x"])
    fixed = synthetic(
        signature(TensorSpec("x", "FP32", (2, 2))), {"x": np.ones((2, 2), np.float32)}
    )
    assert fixed.judged == (0,)


def test_scalar_inputs_have_one_value_per_sample(tmp_path: Path) -> None:
    """As the sample rate of a voice detector has no axis; made-up samples keep its value."""
    both = signature(PICTURES, TensorSpec("rate", "INT64", ()))

    found = read(saved(tmp_path, x=ROWS, rate=np.arange(100)), both)
    made = synthetic(both, {"x": ROWS[:1], "rate": np.array(16_000)})

    for given, number, rate in ((found, 7, 7), (made, 5, 16_000)):
        feed = given.feed(number)
        assert (feed["x"].shape, feed["rate"].shape, feed["rate"].dtype) == ((1, 2), (), np.int64)
        assert feed["rate"] == rate
    assert len(made.judged) == reader.SYNTHETIC
    with pytest.raises(
        SamplesError, match=r"rate: expected INT64 \[\?\] with samples on the first"
    ):
        read(saved(tmp_path, x=ROWS, rate=np.zeros((100, 1), np.int64)), both)
