"""The single thread that loads and runs."""

from __future__ import annotations

import threading

from runtime_image.replica.worker import Worker


def test_work_is_done_in_order_by_one_thread() -> None:
    """Work runs in order in one daemon thread."""
    worker = Worker()
    done = threading.Event()
    ran: list[tuple[int, threading.Thread]] = []

    for number in range(3):
        worker.submit(lambda number=number: ran.append((number, threading.current_thread())))  # type: ignore[misc]  # a bound default is not inferred
    worker.submit(done.set)

    assert done.wait(30)
    assert [number for number, _ in ran] == [0, 1, 2]
    assert len({thread for _, thread in ran}) == 1
    assert ran[0][1].daemon
