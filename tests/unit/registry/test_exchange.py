"""Tests of the messages between gateway and pool manager."""

from __future__ import annotations

import msgspec
import pytest

from registry.exchange import (
    NOTHING,
    Demand,
    Endpoints,
    Load,
    PoolEndpoints,
    ReplicaEndpoint,
    decode_demand,
    decode_endpoints,
    encode,
)

DEMAND = Demand("w1", 7, False, {"default/digits@3": Load(2, 1, 0.5)})
ENDPOINTS = Endpoints(
    9,
    True,
    {
        "default/digits@3": PoolEndpoints(
            [ReplicaEndpoint("r1", "/run/ab/data.sock", 32, True, "cpu:0", {"load": 12.5})],
            "warm",
            "",
        )
    },
)


def test_both_messages_survive_the_wire() -> None:
    """A decoded message equals the encoded one."""
    assert decode_demand(encode(DEMAND)) == DEMAND
    assert decode_endpoints(encode(ENDPOINTS)) == ENDPOINTS


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", encode({"worker": "w1"})])
def test_other_bytes_are_refused(data: bytes) -> None:
    """Other bytes raise DecodeError and no other error."""
    with pytest.raises(msgspec.DecodeError):
        decode_demand(data)
    with pytest.raises(msgspec.DecodeError):
        decode_endpoints(data)


def test_a_demand_does_not_decode_as_endpoints() -> None:
    """A message of one type is not accepted as the other."""
    with pytest.raises(msgspec.DecodeError):
        decode_endpoints(encode(DEMAND))


def test_busy_counts_queued_and_in_flight_calls() -> None:
    """`busy` is the sum of queued and in-flight calls."""
    assert Load(2, 1, 0.5).busy == 3
    assert NOTHING.busy == 0
