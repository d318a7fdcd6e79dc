"""Bodies with more rows are accepted by the codecs and have the rows of the first one in turn."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from runtime_image.codecs import batches
from runtime_image.codecs.accept import JSON
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.batches import BODY_MAX, LENGTH, Job, Refused, bodies
from runtime_image.codecs.bfloat16 import bits
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec, to_json

BATCHED = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())
MIXED = Signature(
    "tensors",
    (
        TensorSpec("t", "BYTES", (-1,)),
        TensorSpec("b", "BF16", (-1, 3)),
        TensorSpec("fixed", "INT64", (2,)),
    ),
    (),
)
FIXED = Signature("tensors", (TensorSpec("x", "FP32", (1, 2)),), ())


def job(signature: Signature, *rows: int, **changes: Any) -> Job:
    """A job for JSON bodies."""
    options = {"rules": {}, "form": "binary", "content_type": JSON, **changes}
    return Job(signature=to_json(signature), rows=list(rows), **options)


def decoded(signature: Signature, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The arrays that a replica would get."""
    length = int(headers[LENGTH]) if LENGTH in headers else None
    head = RequestHead(headers["Content-Type"], json_length=length)
    rules: dict[str, InputRule] = {}
    return to_arrays(parse(head, body, signature, rules), signature, rules)


@pytest.mark.parametrize("form", ["binary", "json"])
def test_rows_repeat_in_turn(form: str) -> None:
    """Fewer and more rows than the given body has; 0 leaves them as they are."""
    given = b'{"inputs": {"x": [[1, 2], [3, 4], [5, 6]]}}'

    found = list(bodies(job(BATCHED, 0, 1, 5, form=form), given))

    arrays = [decoded(BATCHED, headers, body)["x"].tolist() for headers, body, _ in found]
    rows = [[1, 2], [3, 4], [5, 6]]
    assert arrays == [rows, rows[:1], rows + rows[:2]]
    assert [count for _, _, count in found] == [3, 1, 5]


def test_zeros_fit_every_type() -> None:
    """Texts, BF16 and inputs without a batch axis."""
    [(headers, body, rows)] = bodies(job(MIXED, 4, is_zeros=True), b"")

    found = decoded(MIXED, headers, body)

    assert rows == 4
    assert found["t"].tolist() == [""] * 4
    assert bits(found["b"]).tolist() == [[0] * 3] * 4
    assert found["fixed"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (job(FIXED, 2, is_zeros=True), r"no input has a batch axis.*x of shape \[1, 2\]"),
        (job(Signature("json", (), ()), 1), "kind json"),
        (job(MIXED, 1, is_zeros=True, form="json"), "JSON has no form"),
        (job(BATCHED, BODY_MAX, is_zeros=True), f"at most {BODY_MAX}"),
        (
            job(Signature("tensors", (TensorSpec("x", "FP64", (2**40,)),), ()), 1, is_zeros=True),
            "x",
        ),
    ],
)
def test_impossible_batches_are_refused(made: Job, text: str) -> None:
    """Before memory is allocated for it."""
    with pytest.raises(Refused, match=text):
        list(bodies(made, b""))


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone may be small enough."""
    monkeypatch.setattr(batches, "TOTAL_MAX", 1000)
    with pytest.raises(Refused, match="at most 1000 bytes of bodies"):
        list(bodies(job(BATCHED, *range(50, 60), is_zeros=True), b""))


def test_a_fixed_axis_has_its_own_rows() -> None:
    """The only number of rows that fits is allowed."""
    [(_, _, rows)] = bodies(job(FIXED, 1, is_zeros=True), b"")
    assert rows == 1
    with pytest.raises(RequestError, match="FP32"):
        list(bodies(job(BATCHED, 1), b'{"inputs": {"x": [["a", 2]]}}'))


def test_the_process_writes_heads_and_bodies() -> None:
    """An error is one line on stderr, without a traceback."""
    command = [sys.executable, "-P", "-m", "runtime_image.codecs.batches"]
    sent = msgspec.json.encode(job(BATCHED, 2, 3)) + b'\n{"inputs": {"x": [[1, 2]]}}'
    output = subprocess.run(command, input=sent, capture_output=True, check=True).stdout
    for rows in (2, 3):
        line, _, output = output.partition(b"\n")
        head = msgspec.json.decode(line)
        body, output = output[: head["bytes"]], output[head["bytes"] :]
        assert np.array_equal(decoded(BATCHED, head["headers"], body)["x"], [[1, 2]] * rows)
        assert head["rows"] == rows
    assert output == b""

    failed = subprocess.run(
        command, input=msgspec.json.encode(job(FIXED, 9, is_zeros=True)), capture_output=True
    )
    assert failed.returncode == 1
    assert failed.stderr.count(b"\n") == 1
