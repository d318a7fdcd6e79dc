"""Damaged bodies of the Open Inference Protocol: whatever arrives is read or refused in order."""

from __future__ import annotations

import json
import time
import tracemalloc

import numpy as np
import pytest

from gateway.oip.parameters import requested_scheduling
from runtime_image.codecs.accept import OIP
from runtime_image.codecs.arrays import to_arrays
from runtime_image.codecs.fast_oip import Missed, oip_reader
from runtime_image.codecs.request import RequestHead, check_finite, parse
from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.doses import amount
from tests.support.oip_forms import DTYPES, LENGTH, WIDTH, binary, forms_of, tensors
from tests.support.oip_mutants import Body, mutants

DATATYPES = ("FP32", "BYTES", "BOOL", "INT64", "UINT64", "FP16")
SLOWEST_S = 1.0
MEMORY_MAX = 16 * 2**20
"""Bytes, for bodies of a few kilobytes."""


def signature(datatypes: tuple[str, ...] = DATATYPES) -> Signature:
    inputs = (TensorSpec(f"in_{one.lower()}", one, (-1, WIDTH)) for one in datatypes)
    outputs = (TensorSpec(f"out_{one.lower()}", one, (-1, WIDTH)) for one in datatypes)
    return Signature("tensors", tuple(inputs), tuple(outputs))


def bodies(datatypes: tuple[str, ...] = DATATYPES) -> list[Body]:
    """Whole bodies of all forms that have a JSON part, with their lengths."""
    given = tensors(np.random.default_rng(7), datatypes, finite=True)
    wires = [form.write("echo", given) for form in forms_of(given) if "gzip" not in form.name]
    return [(wire.body, int(wire.headers[LENGTH])) for wire in wires if LENGTH in wire.headers] + [
        (wire.body, -1) for wire in wires if LENGTH not in wire.headers and "fn" not in wire.path
    ]


def test_damaged_bodies_are_read_or_refused() -> None:
    """Every body gives the arrays of the signature or BAD_INPUT, in the gateway and in a replica,
    without much time or memory."""
    wanted, accepted = signature(), 0
    rules = {"in_fp32": InputRule(finite=True)}
    slowest_s = 0.0
    tracemalloc.start()
    try:
        for body, length in mutants(18, bodies(), amount(3_000, 100_000)):
            began_s = time.process_time()
            accepted += _is_read(body, length, wanted, rules)
            slowest_s = max(slowest_s, time.process_time() - began_s)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert accepted, "no change left a body whole: they are too hard"
    assert slowest_s < SLOWEST_S
    assert peak < MEMORY_MAX


def _is_read(body: bytes, length: int, wanted: Signature, rules: dict[str, InputRule]) -> bool:
    view, refusal = memoryview(body), None
    try:
        requested_scheduling(view, length)
        parsed = parse(RequestHead(OIP, "", length if length >= 0 else None), view, wanted, rules)
        check_finite(parsed, rules)
        arrays = to_arrays(parsed, wanted, rules)
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code == BAD_INPUT
        assert len(refusal.message) < 1000
        return False
    for one in DATATYPES:
        array = arrays[f"in_{one.lower()}"]
        assert array.dtype == DTYPES[one]
        assert array.shape[1:] == (WIDTH,)
    return True


@pytest.mark.parametrize("datatypes", [("FP32",), ("FP32", "INT64", "UINT8")])
def test_the_fast_path_reads_what_the_ordinary_one_reads(datatypes: tuple[str, ...]) -> None:
    """A damaged body that the fast path takes has the same arrays, form and id as otherwise."""
    wanted, taken = signature(datatypes), 0
    reader = oip_reader(wanted, {})
    assert reader is not None
    for body, length in mutants(20, bodies(datatypes), amount(3_000, 100_000)):
        header = max(length, -1)
        found = reader.read(body, header)
        head = RequestHead(OIP, "", header if header >= 0 else None)
        try:
            parsed = parse(head, body, wanted, {})
        except RequestError as error:
            refusal = error.message
            assert isinstance(found, Missed), refusal
            continue
        if isinstance(found, Missed):
            reader.remember(found, len(body), header, parsed)
            continue
        taken += 1
        arrays = to_arrays(parsed, wanted, {})
        assert (found.answer, found.id) == (parsed.answer, parsed.id)
        assert {name: (one.shape, one.tobytes()) for name, one in found.arrays.items()} == {
            name: (one.shape, one.tobytes()) for name, one in arrays.items()
        }
    assert taken, "no body took the fast path"


HOSTILE = {
    "inputs": b'{"name":"","shape":[],"datatype":""},',
    "outputs": b'{"name":"y"},',
    "shape": b"1,",
    "data": b"[],",
    "parameters": b'"a":1,',
}


@pytest.mark.parametrize("where", HOSTILE)
def test_large_hostile_bodies_are_refused_in_time(where: str) -> None:
    """A body of megabytes that repeats the smallest item is refused with bounded memory."""
    size = amount(2, 64) * 2**20
    piece = HOSTILE[where]
    inner = piece * (size // len(piece))
    item = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    document = json.dumps({"parameters": {"a": 0}, "inputs": [item], "outputs": [{"name": "y"}]})
    begin = {
        "inputs": '"inputs": [', "outputs": '"outputs": [', "shape": '"shape": [',
        "data": '"data": [', "parameters": '"parameters": {',
    }[where]  # fmt: skip
    head, found, tail = document.partition(begin)
    assert found
    body = head.encode() + begin.encode() + inner + tail.encode()
    wanted = Signature(
        "tensors", (TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (1,)),)
    )
    tracemalloc.start()
    began_s = time.process_time()
    try:
        requested_scheduling(body, -1)
        with pytest.raises(RequestError) as caught:
            parse(RequestHead(OIP, "", len(body)), body, wanted, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == BAD_INPUT
    assert peak < 16 * len(body)
    assert time.process_time() - began_s < 1 + size / 2**20


def test_whole_bodies_are_read() -> None:
    """The bodies that are damaged above are right before."""
    given = tensors(np.random.default_rng(7), DATATYPES, finite=True)
    wire = binary("echo", given)
    for body, length in [*bodies(), (wire.body, int(wire.headers[LENGTH]))]:
        assert _is_read(body, length, signature(), {})
