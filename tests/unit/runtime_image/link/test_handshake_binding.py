"""BIND and what a replica does not believe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime_image.contract.link import HEADER, Kind
from runtime_image.contract.model import ImageForm, InputRule, ModelSpec
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.handshake import pack_bind, read_bind
from tests.support.greetings import bind_request

SPEC = ModelSpec("digits@1", inputs={"x": InputRule("image", image=ImageForm((8, 8)))})


def frame(body: bytes) -> Frame:
    return Frame(Kind.BIND, 0, 0, 0, b"", body)


def changed(**changes: Any) -> bytes:
    return json.dumps({**bind_request(SPEC), **changes}).encode()


def test_what_was_packed_is_read() -> None:
    """The request arrives as it was sent, and its model in full."""
    request = bind_request(SPEC, role="trial", memory_mib=64, assigned_s=12.5)

    [packed] = pack_bind(request)
    read, spec = read_bind(frame(bytes(packed[HEADER.size :])))

    assert packed[8] == Kind.BIND
    assert {**read, "spec": None} == {**request, "spec": None}
    assert spec == SPEC


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "malformed BIND: Expecting property name"),
        (b"\xff", "malformed BIND: 'utf-8' codec can't decode"),
        (b"[1]", r"expected an object, got '\[1\]'"),
        (changed(bound=7), "expected a text as bound, got '7'"),
        (changed(bound=""), "expected a pool's key as bound, got ''"),
        (changed(namespace=None), "expected a text as namespace, got 'None'"),
        (changed(role="standby"), "expected serve or trial as role, got 'standby'"),
        (changed(threads="2"), "expected a number of 0 or more as threads, got '2'"),
        (changed(memory_mib=True), "expected a number of 0 or more as memory_mib, got 'True'"),
        (changed(memory_mib=-1), "expected a number of 0 or more as memory_mib, got '-1'"),
        (changed(assigned_s=None), "expected seconds as assigned_s, got 'None'"),
        (changed(assigned_s=float("nan")), "expected seconds as assigned_s, got 'nan'"),
        (changed(phases=[]), r"expected milliseconds by phase as phases, got '\[\]'"),
        (changed(phases={"lunch": 1}), "expected milliseconds by phase as phases"),
        (changed(phases={"place": "1"}), "expected milliseconds by phase as phases"),
        (changed(spec="model.onnx"), "expected an object as spec, got 'model.onnx'"),
        (changed(spec={"model": "m.onnx"}), "spec: .* missing 1 required .* 'revision'"),
        (changed(spec={"revision": "a@1", "surprise": 1}), "spec: .* 'surprise'"),
        (changed(spec={"revision": "a@1", "inputs": []}), "spec: "),
        (changed(bound={"x": "y" * 1000}), "got .{100,110}$"),
    ],
)
def test_what_does_not_fit_is_refused(body: bytes, reason: str) -> None:
    """The error says what was expected and, in short, what came."""
    with pytest.raises(LinkError, match=reason):
        read_bind(frame(body))
