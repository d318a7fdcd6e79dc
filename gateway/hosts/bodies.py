"""The side of a data link to another host, where bodies travel in frames only."""

from __future__ import annotations

from collections.abc import Collection

from gateway.shared_memory import Body, BodySlot
from gateway.socket_channel import Side
from runtime_image.link.frames import LinkError


class FramedBodies(Side):
    """Slots of the bodies on one link: each is held while the transport may still write it."""

    def __init__(self) -> None:
        self._slots: dict[int, BodySlot] = {}

    def send(self, id: int, slot: BodySlot, body: Body) -> tuple[Body, int]:
        """Return body and flags of the frame REQUEST `id`, whose body is in `slot`."""
        slot.acquire()
        self._slots[id] = slot
        return body, 0

    def release(self, id: int) -> None:
        """Release the slot of a request that the replica has released."""
        slot = self._slots.pop(id, None)
        if slot is not None:
            slot.release()

    def release_all(self, ids: Collection[int]) -> None:
        """Release the slots of requests whose channel has ended."""
        for id in ids:
            self.release(id)

    def read_answer(self, packed: bytes | bytearray) -> bytes:
        """Refuse an answer outside of its frame: LinkError."""
        raise LinkError(f"an answer in shared memory, on another host ({len(packed)} bytes)")

    def close(self) -> None:
        """Release all slots."""
        self.release_all(list(self._slots))
