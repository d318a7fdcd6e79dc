"""Samples from model_warmup."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from admin.cli.repository.config import ModelConfig, Warmup, WarmupInput
from admin.cli.repository.fields import Findings
from admin.cli.repository.sample import ITEMS_MAX, sample


def made(
    folder: Path, dtype: str, dims: tuple[int, ...], source: str = "zero", rows: int = 0
) -> tuple[Any, list[str]]:
    """Return the value of the one input x, and what is said."""
    warmup = Warmup(max(1, rows), (WarmupInput("x", dtype, dims, source, 3),), 2)
    findings = Findings()
    config = ModelConfig(max_batch_size=8 if rows else 0, warmup=warmup)
    found = sample(folder, config, ["x"], findings)
    return found.get("x"), [one.text for one in findings.items]


@pytest.mark.parametrize(
    ("dtype", "dims", "rows", "expected"),
    [
        ("FP32", (2,), 0, [0.0, 0.0]),
        ("INT64", (1, 2), 0, [[0, 0]]),
        ("INT64", (2,), 2, [[0, 0], [0, 0]]),
        ("BOOL", (1,), 0, [False]),
        ("BYTES", (1,), 0, [""]),
        ("FP16", (), 2, [0.0, 0.0]),
    ],
)
def test_zeros(tmp_path: Path, dtype: str, dims: tuple[int, ...], rows: int, expected: Any) -> None:
    """Each type has its zero; the axis of rows comes first where the model has one."""
    value, said = made(tmp_path, dtype, dims, rows=rows)
    assert (value, said) == (expected, [])
    assert repr(value) == repr(expected)


@pytest.mark.parametrize("dtype", ["FP32", "INT8", "UINT64", "BOOL"])
def test_random_values_are_the_same_each_time(tmp_path: Path, dtype: str) -> None:
    """A second deploy of the same folder must find the same function.toml."""
    first, said = made(tmp_path, dtype, (40,), "random")
    assert (made(tmp_path, dtype, (40,), "random")[0], said) == (first, [])
    assert len(set(first)) > 1
    assert all(0 <= one <= 1 for one in first)
    assert made(tmp_path, "BYTES", (1,), "random")[0] == [""]


@pytest.mark.parametrize(
    ("dtype", "data", "expected"),
    [
        ("FP32", struct.pack("<2f", 1.5, -2), [1.5, -2.0]),
        ("INT64", struct.pack("<2q", 1, -2), [1, -2]),
        ("FP16", struct.pack("<2e", 1.5, -2), [1.5, -2.0]),
        ("BOOL", b"\x00\x01", [False, True]),
        ("BYTES", b"\x02\x00\x00\x00hi\x00\x00\x00\x00", ["hi", ""]),
    ],
)
def test_a_files_raw_data_is_read(tmp_path: Path, dtype: str, data: bytes, expected: Any) -> None:
    """Files are in the folder warmup, without the axis of rows, for which they are repeated."""
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(data)
    assert made(tmp_path, dtype, (2,), "@raw") == (expected, [])
    assert made(tmp_path, dtype, (2,), "@raw", rows=2) == ([expected, expected], [])


@pytest.mark.parametrize(
    ("dtype", "dims", "source", "text"),
    [
        ("", (2,), "zero", "expected a data_type, got none"),
        ("FP32", (-1,), "zero", "expected dims of 1 and more, got [-1]"),
        ("FP32", (ITEMS_MAX + 1,), "zero", f"expected at most {ITEMS_MAX} items"),
        ("FP32", (2,), "@raw", "warmup/raw: expected 8 bytes, got 5"),
        ("FP32", (2,), "@none", "'warmup/none' cannot be read"),
        ("UINT8", (6,), "@../secret", "has the part '..'"),
        ("UINT8", (6,), "@link", "expected a link to a file that is not hidden"),
        ("FP32", (2,), "@nan", "NaN and infinities have no JSON form"),
        ("BF16", (2,), "@raw", "values of BF16 have no JSON form"),
        ("BYTES", (2,), "@short", "expected 2 strings, the file ends before"),
        ("BYTES", (1,), "@nan", "expected a string of"),
        ("BYTES", (1,), "@long", "expected 1 strings, there are more bytes"),
        ("BYTES", (1,), "@raw", "not UTF-8"),
    ],
)
def test_a_sample_that_cannot_be_made_is_said(
    tmp_path: Path, dtype: str, dims: tuple[int, ...], source: str, text: str
) -> None:
    """The trial then runs zeros, and the model is deployed."""
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(b"\x01\x00\x00\x00\xff")
    (tmp_path / "warmup" / "nan").write_bytes(struct.pack("<2f", float("nan"), 0))
    (tmp_path / "warmup" / "long").write_bytes(b"\x01\x00\x00\x00ab")
    (tmp_path / "warmup" / "short").write_bytes(b"\x01\x00\x00\x00a\x00")
    (tmp_path / ".secret").write_bytes(b"secret")
    (tmp_path / "warmup" / "link").symlink_to(tmp_path / ".secret")
    value, said = made(tmp_path, dtype, dims, source)
    assert value is None
    assert len(said) == 1
    assert text in said[0]
    assert said[0].endswith("; the trial runs zeros instead")


def test_a_sample_without_an_input_is_none(tmp_path: Path) -> None:
    """Triton would refuse the warm-up; the trial makes its own."""
    config = ModelConfig(warmup=Warmup(1, (WarmupInput("x", "FP32", (1,), "zero", 1),), 1))
    findings = Findings()
    assert sample(tmp_path, config, ["x", "y"], findings) == {}
    assert "'y' is missing" in findings.items[0].text
