"""Tests of the messages between supervisor and workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admin.workers import messages as m
from gateway.http.connected import Connected, Connections
from gateway.metrics.counters import Exemplar, SampleExemplar
from gateway.observing.errors import Failure
from gateway.settings import GatewaySettings
from registry.exchange import Expected
from registry.model.keys import Key
from registry.openness import Openness
from tests.support import nouns

DEPLOYED = nouns.deployed()
MARKED = SampleExemplar("n_bucket", ("le", "1.0"), Exemplar(("request_id", "a"), 0.5, 100.0))
DOWN = [
    m.Welcome("7", GatewaySettings(), "json", "/s", True, b"\x00secret"),
    m.Functions([m.FunctionNow("default", "digits", [DEPLOYED])]),
    m.Functions([m.FunctionNow("default", "gone", [])]),
    m.OpennessNow(Openness.OPEN),
    m.KeyNow(Key("k", "ab" * 32, ("invoke:digits",)), True),
    m.Estimates({"default/digits@1": Expected(0.1, 0.25, 0.5, 7)}),
    m.Began(),
    m.Pools(b"\x00endpoints"),
    m.Reach(4),
    m.Reckon(5),
    m.AskConnected(6, "default", "web"),
    m.LoadEnded(7),
    m.LoadEnded(8, "no_room", "digits@1 found no room", 5.0, {"a": [1]}, {"log_tail": ["x"]}),
    m.Stop(),
]
UP = [
    m.Wants(b"\x00demand"),
    m.Reached(4),
    m.Ready(),
    m.Failed("the port is taken"),
    m.Beat(12, [m.Arrived("default", "digits", 3)], []),
    m.Beat(
        1, [], [], [Failure("default", "digits", "digits@3", "poison", 1.5, "why", "r", "q", 9)]
    ),
    m.Reckoned(5, 3.0, {"completed": 1.0}, {"a": 1}, {"a": 1}, [MARKED]),
    m.TellConnected(6, Connections([Connected("k", "events", 1.5, "/x", True)], 1, 2)),
    m.Woken("default", "digits", "r1", {"load": 1.5}),
    m.Woken("default", "digits", "r1", {"load": 1.5}, ("request_id", "a")),
    m.AskLoad(7, "default", "digits@1", 2.5),
    m.LeaveLoad(7),
    m.AskUnload("default", "digits"),
    m.Finished(),
]


@pytest.mark.parametrize("message", DOWN, ids=lambda one: type(one).__name__)
def test_a_supervisors_message_decodes_to_itself(message: Any) -> None:
    """Every message of the supervisor decodes to the same message, registry objects included."""
    assert m.decode_down(m.encode(message)) == message


@pytest.mark.parametrize("message", UP, ids=lambda one: type(one).__name__)
def test_a_workers_message_decodes_to_itself(message: Any) -> None:
    """Every message of a worker decodes to the same message."""
    assert m.decode_up(m.encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", m.encode({"type": "Nonsense"}), b"\x91\x01"])
def test_an_unknown_message_is_refused(data: bytes) -> None:
    """Unknown bytes and unknown messages are refused on both sides."""
    for decode in (m.decode_down, m.decode_up):
        with pytest.raises(msgspec.DecodeError):
            decode(data)


def test_messages_have_one_direction() -> None:
    """A message of a worker is refused by a worker, and an unknown field is an error."""
    with pytest.raises(msgspec.DecodeError):
        m.decode_down(m.encode(m.Ready()))
    with pytest.raises(msgspec.DecodeError):
        m.decode_up(m.encode({"type": "Ready", "surplus": 1}))
