"""What a removed key has open is cut, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from gateway.revocation import AT_ONCE, cut_revoked
from gateway.waits import OpenRequests
from registry.errors import FnError, NoKey
from registry.model.keys import Key
from registry.openness import Openness
from registry.store.keys import KeyRing

ONE, OTHER = (Key(id, id, ("invoke",)) for id in ("one", "other"))


class Opened:
    """Something open; `error` is why it ended."""

    def __init__(self, key_id: str, *, is_faulty: bool = False) -> None:
        self.key_id = key_id
        self.is_faulty = is_faulty
        self.error: FnError | None = None

    def fail(self, error: FnError) -> None:
        """End."""
        self.error = error
        if self.is_faulty:
            raise RuntimeError("a defect")


def cut_of(opened: list[Opened]) -> list[str]:
    """Return the keys of what was cut."""
    return [one.key_id for one in opened if isinstance(one.error, NoKey)]


async def test_what_a_removed_key_has_open_is_cut() -> None:
    """What others have open goes on, also that of callers without a key; a defect of one cut spares
    the next, and a new key cuts nothing."""
    ring = KeyRing([ONE, OTHER])
    opened = [Opened("one", is_faulty=True), Opened("other"), Opened(""), Opened("one")]
    end = cut_revoked(ring, lambda: opened)
    seen: list[Key] = []
    ring.subscribe(lambda key, _is_let_in: seen.append(key))

    ring.put(OTHER)
    assert cut_of(opened) == []
    ring.remove(ONE)
    assert cut_of(opened) == ["one", "one"]
    assert seen == [OTHER, ONE]
    end()
    ring.remove(OTHER)

    assert cut_of(opened) == ["one", "one"]


async def test_closing_the_server_cuts_what_callers_without_a_key_have_open() -> None:
    """The first key closes it, too. What is open with a key goes on."""
    ring = KeyRing()
    opened = [Opened(""), Opened("one")]
    cut_revoked(ring, lambda: opened)

    ring.decide(Openness.OPEN)
    assert cut_of(opened) == []
    ring.put(ONE)

    assert cut_of(opened) == [""]


async def test_much_is_cut_in_turns_of_the_loop() -> None:
    """Cutting thousands keeps no other request waiting for long."""
    ring = KeyRing([ONE])
    opened = [Opened("one") for _ in range(2 * AT_ONCE + 1)]
    cut_revoked(ring, lambda: opened)

    ring.remove(ONE)
    counts = [len(cut_of(opened))]
    for _ in range(2):
        await asyncio.sleep(0)
        counts.append(len(cut_of(opened)))

    assert counts == [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1]


async def test_a_request_of_the_admin_api_ends_with_its_key() -> None:
    """A wait of a removed key is refused, its own time-out stays one, others get their answers."""
    ring = KeyRing([ONE, OTHER])
    requests, answered = OpenRequests(ring), asyncio.Event()

    async def late() -> None:
        raise TimeoutError

    one = asyncio.create_task(requests.run("one", answered.wait()))
    other = asyncio.create_task(requests.run("other", answered.wait()))
    await asyncio.sleep(0)
    ring.remove(ONE)
    ring.remove(ONE)
    with pytest.raises(NoKey, match="the key was removed"):
        await one
    with pytest.raises(TimeoutError):
        await requests.run("other", late())
    answered.set()

    assert await other is True
