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
            [ReplicaEndpoint("r1", "/run/ab/data.sock", 32, True, ("cpu:0",), {"load": 12.5})],
            "warm",
            "",
            kept_by=["default/a"],
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


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "cannot open /srv/fn/data/models/a.onnx: no such file",
            "cannot open a.onnx: no such file",
        ),
        ("('/tmp/x y/b', \"/home/me/c.py\")", "('x y/b', \"c.py\")"),
        ("no engine at unix:///var/run/docker.sock", "no engine at docker.sock"),
        (
            "http://127.0.0.1:80/health/ready answered 500",
            "http://127.0.0.1:80/health/ready answered 500",
        ),
        ("3 MiB/s, cpu/gpu", "3 MiB/s, cpu/gpu"),
        ("/", "/"),
    ],
)
def test_clients_are_told_no_folders(reason: str, told: str) -> None:
    """Of an absolute path in a pool's reason clients get the last part; the rest stays."""
    assert PoolEndpoints([], "failing", reason).told == told


def test_a_long_reason_is_read_at_once() -> None:
    """A reason of a million characters is searched in one pass."""
    text = "/a" * 500_000
    assert PoolEndpoints([], "failing", text).told == "a"
