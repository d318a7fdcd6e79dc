"""Which element types have which forms of a request: the guide's table, by trial of each cell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from runtime_image.codecs.accept import JSON, NPY, OCTETS
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.signature import Signature, TensorSpec

GUIDE: Final = Path(__file__).parents[4] / "docs/guides/call.md"
DESCR: Final = {dtype: descr for descr, dtype in dtypes.FROM_NPY.items()}
VALUES: Final = {"BOOL": True, "BYTES": "a", **dict.fromkeys(dtypes.FLOATS, 0.5)}
FORMS: Final = ("short JSON", "protocol's JSON", "protocol's binary tensors", "npy")
ONE: Final = {"BYTES": b"\1\0\0\0a"}
"""One element in binary, of a type without a fixed size."""


def table() -> dict[str, dict[str, bool]]:
    """Return whether a datatype has a form, by both, of the guide's table."""
    lines = GUIDE.read_text("utf-8").split("| datatype of an input |")[1].splitlines()
    forms = [cell.strip() for cell in lines[0].strip(" |").split("|")]
    found: dict[str, dict[str, bool]] = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        types, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for one in re.findall(r"[A-Z]+\d*", types):
            found[one] = dict(zip(forms, (cell == "yes" for cell in cells), strict=True))
    return found


def request(dtype: str, form: str) -> tuple[RequestHead, bytes]:
    """Return a request with one element."""
    raw = ONE.get(dtype) or bytes(dtypes.ITEM_SIZE[dtype])
    tensor = {"name": "x", "shape": [1], "datatype": dtype}
    if form == "short JSON":
        return RequestHead(JSON), json.dumps({"inputs": {"x": [VALUES.get(dtype, 1)]}}).encode()
    if form == "protocol's JSON":
        tensor["data"] = [VALUES.get(dtype, 1)]
        return RequestHead(JSON), json.dumps({"inputs": [tensor]}).encode()
    if form == "protocol's binary tensors":
        tensor["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps({"inputs": [tensor]}).encode()
        return RequestHead(OCTETS, json_length=len(head)), head + raw
    assert form == "npy"
    text = f"{{'descr': '{DESCR.get(dtype, '|O')}', 'fortran_order': False, 'shape': (1,), }}"
    head = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()
    return RequestHead(NPY), head + raw


def test_the_table_has_every_datatype() -> None:
    """No element type is missing, and none is invented."""
    assert table().keys() == dtypes.ALL


@pytest.mark.parametrize("dtype", sorted(dtypes.ALL))
@pytest.mark.parametrize("form", FORMS)
def test_each_cell_of_the_table_holds(dtype: str, form: str) -> None:
    """A form that the guide promises is taken, and one that it denies is refused."""
    signature = Signature("tensors", (TensorSpec("x", dtype, (-1,)),), ())
    head, body = request(dtype, form)
    if table()[dtype][form]:
        parsed = parse(head, body, signature, {}).inputs["x"]
        assert (parsed.dtype, parsed.shape) == (dtype, (1,))
        return
    with pytest.raises(RequestError) as caught:
        parse(head, body, signature, {})
    assert caught.value.code == "bad_input"
