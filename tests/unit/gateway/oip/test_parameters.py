"""What a request's parameters say about its place in the queue."""

import json
from typing import Any

import pytest

from gateway.dispatch.call import Priority
from gateway.oip.parameters import (
    END_MAX,
    UNSCHEDULED,
    WHOLE_MAX,
    Scheduling,
    requested_scheduling,
)
from runtime_image.contract.errors import BAD_INPUT, RequestError

X = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
LONG = {"name": "x", "shape": [WHOLE_MAX], "datatype": "FP32", "data": [1] * WHOLE_MAX}


def scheduling(*, inputs: Any = X, **given: Any) -> Scheduling:
    body = json.dumps({"id": "7", "inputs": [inputs], "parameters": given}).encode()
    return requested_scheduling(body, -1)


@pytest.mark.parametrize(
    ("priority", "wanted"),
    [
        (0, None),
        (1, Priority.HIGH),
        (2, Priority.NORMAL),
        (3, Priority.LOW),
        (2**62, Priority.LOW),
        (None, None),
    ],
)
def test_priorities_have_three_classes(priority: int | None, wanted: Priority | None) -> None:
    """1 is high, 2 normal, everything after it low; 0 is the default."""
    assert scheduling(priority=priority) == Scheduling(None, wanted)


@pytest.mark.parametrize(("timeout", "wait_s"), [(0, None), (1, 1e-6), (2_500_000, 2.5)])
def test_timeouts_are_microseconds(timeout: int, wait_s: float | None) -> None:
    """A timeout is the wait in microseconds; 0 means none."""
    assert scheduling(timeout=timeout) == Scheduling(wait_s, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b'{"inputs":[]}',
        b'{"timeout":5}',
        b'{"parameters":{"priorities":1,"my timeout":2}}',
        b'{"parameters":"timeout"}'[:-1],
        b'{"parameters":null,"timeout":1}',
        b'{"inputs":[{"parameters":{"timeout":1,"priority":1}}]}',
    ],
)
def test_other_bodies_say_nothing(body: bytes) -> None:
    """Without parameters of the request's own, and in what is no JSON, nothing is found."""
    assert requested_scheduling(body, -1) == UNSCHEDULED


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": -1},
        {"timeout": "5"},
        {"priority": True},
        {"priority": 1.5},
        {"timeout": 1, "sequence_id": 4},
        {"timeout": 2**63},
    ],
)
def test_wrong_parameters_are_refused_here(given: dict[str, Any]) -> None:
    """What a replica would refuse is refused before the request takes its place."""
    with pytest.raises(RequestError, match=r"parameters|sequence") as caught:
        scheduling(**given)
    assert caught.value.code == BAD_INPUT


def test_only_the_json_part_is_read() -> None:
    """Tensors behind the JSON part, and lengths beyond the body, change nothing."""
    head = json.dumps({"inputs": [], "parameters": {"priority": 1}}).encode()
    for body in (head + b'{"priority"', memoryview(head), bytearray(head)):
        assert requested_scheduling(body, len(head)).priority == Priority.HIGH
    assert requested_scheduling(head, 10**9).priority == Priority.HIGH
    assert requested_scheduling(b'{"inputs":[]}' + head, 13) == UNSCHEDULED


@pytest.mark.parametrize("before", [True, False])
def test_long_bodies_are_read_at_both_ends(before: bool) -> None:
    """Parameters at either end of a long JSON part are found."""
    given = {"parameters": {"timeout": 7, "note": "a [b]"}}
    inputs = {"inputs": [LONG]}
    document = {"id": "7", **given, **inputs} if before else {"id": "7", **inputs, **given}
    body = json.dumps(document).encode()
    assert len(body) > WHOLE_MAX
    assert requested_scheduling(memoryview(body), -1) == Scheduling(7e-6, None)
    assert requested_scheduling(body + b" \n", len(body) + 2) == Scheduling(7e-6, None)


def test_parameters_inside_a_long_body_are_not_searched() -> None:
    """In the middle of a long JSON part, and of inputs at its ends, parameters are not found."""
    given = {"parameters": {"timeout": 7}}
    middle = json.dumps({"inputs": [LONG], **given, "outputs": [], "more": [0] * END_MAX})
    last = json.dumps({"inputs": [LONG, {"name": "y", **given}]})
    first = json.dumps({"inputs": [{"name": "y", **given}, LONG]})
    for body in (middle, last, first):
        assert requested_scheduling(body.encode(), -1) == UNSCHEDULED


@pytest.mark.parametrize(
    "piece", [b'"parameters":{"timeout":', b'{"timeout":1,"a":"', b'"priority"', b"[", b'{"timeout']
)
def test_hostile_bodies_take_no_time(piece: bytes) -> None:
    """A large body is searched at its ends only: nothing else of it is copied."""
    body = piece * (2**20 // len(piece))
    counted = _Counted(body)
    assert requested_scheduling(counted, -1) == UNSCHEDULED
    assert counted.copied <= 2 * END_MAX


class _Counted(bytes):
    """Bytes that count what is copied out of them."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.copied += len(found)
        return found
