"""A simulated replica."""

from __future__ import annotations

from admin.advice.load_model import Ask, Process
from admin.advice.simulation import META


def ask(service_s: float) -> Ask:
    made = Ask("default/f@1", META, b"", 0.0, 55.0, 60.0)
    made.service_s = service_s
    return made


def test_a_batch_lasts_as_long_as_its_longest() -> None:
    """What waits behind it is the next one."""
    process = Process("r1", "default/f@1", {}, 0.0, batch=2)
    first, second, third = ask(1.0), ask(3.0), ask(2.0)
    process.waiting.extend([first, second, third])

    took = process.begin()
    done = process.finish(3.0)

    assert (took, done, list(process.waiting)) == (3.0, [first, second], [third])
    assert (process.has_run, process.last_end_s, process.is_idle) == (True, 3.0, False)
