"""Property tests of the order in which queued calls of all priorities are served."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.call import Call, Priority
from gateway.dispatch.queue import CallQueue
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")


@given(
    counts=st.tuples(*[st.integers(12, 40)] * 3),
    skipped=st.integers(0, 11),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_turns_are_8_3_1_while_all_are_queued(counts: tuple[int, int, int], skipped: int) -> None:
    """While all three priorities are queued, any twelve calls served are 8 high, 3 normal, 1
    low."""
    line = CallQueue()
    for priority, count in zip(Priority, counts, strict=True):
        for _ in range(count + 8):
            line.append(Call("default/a@1", META, b"", 0.0, 1.0, 1.0, priority))
    for _ in range(skipped):
        line.pop()

    served = [line.pop().priority for _ in range(12)]

    assert [served.count(priority) for priority in Priority] == [8, 3, 1]
