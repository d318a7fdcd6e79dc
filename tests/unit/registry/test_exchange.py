"""The messages between gateway and pool manager."""

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
    """What is decoded equals what was encoded."""
    assert decode_demand(encode(DEMAND)) == DEMAND
    assert decode_endpoints(encode(ENDPOINTS)) == ENDPOINTS


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", encode({"worker": "w1"})])
def test_other_bytes_are_refused(data: bytes) -> None:
    """Bytes that are no such message raise DecodeError and nothing else."""
    with pytest.raises(msgspec.DecodeError):
        decode_demand(data)
    with pytest.raises(msgspec.DecodeError):
        decode_endpoints(data)


def test_a_demand_is_no_endpoints() -> None:
    """One message is not taken for the other."""
    with pytest.raises(msgspec.DecodeError):
        decode_endpoints(encode(DEMAND))


def test_a_load_is_busy_with_all_that_is_not_answered() -> None:
    """What is held and what is in flight count alike; nothing is nothing."""
    assert Load(2, 1, 0.5).busy == 3
    assert NOTHING.busy == 0
