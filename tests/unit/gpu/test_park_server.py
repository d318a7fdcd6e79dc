"""Tests of the memory of the engine that `make gpu` parks, on cards of the host's memory."""

from __future__ import annotations

import zlib

from tests.gpu.park_server import DAMAGED_MIB, MIB, CardMemory

PART_MIB = DAMAGED_MIB + 1


class HostCards:
    """Cards whose memory is the host's. What is taken has whatever was there before."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken_mib = [0] * count

    def take(self, card: int, size: int) -> bytearray:
        self.taken_mib[card] += size // MIB
        return bytearray(b"\x01" * size)

    def write(self, card: int, taken: bytearray, data: bytes) -> None:
        assert len(taken) == len(data), card
        taken[:] = data

    def checksum(self, card: int, taken: bytearray, size: int) -> int:
        assert len(taken) == size, card
        return zlib.crc32(taken)

    def give_back(self, card: int, taken: bytearray) -> None:
        self.taken_mib[card] -= len(taken) // MIB


class DroppingCards(HostCards):
    """The same, whose last card takes no data."""

    def write(self, card: int, taken: bytearray, data: bytes) -> None:
        if card < self.count - 1:
            super().write(card, taken, data)


def test_a_sleep_frees_what_it_should_and_a_wake_brings_it_back() -> None:
    """On each GPU: nothing, half, or all but what a process has anyway."""
    cards = HostCards(2)
    memory = CardMemory(cards, PART_MIB)
    memory.fill(is_right=True)
    for kept in (1.0, 0.5, 0.0):
        memory.free(kept)
        assert cards.taken_mib == [round(2 * PART_MIB * kept)] * 2
        memory.fill(is_right=True)
        assert cards.taken_mib == [2 * PART_MIB] * 2
        assert memory.is_right()


def test_damage_is_read_back() -> None:
    """A wrong refill is seen, also by one card alone, and a right one mends it."""
    memory = CardMemory(HostCards(2), PART_MIB)
    memory.fill(is_right=True)
    memory.free(0.0)
    memory.fill(is_right=False)
    assert not memory.is_right()
    memory.fill(is_right=True)
    assert memory.is_right()

    dropping = CardMemory(DroppingCards(2), PART_MIB)
    dropping.fill(is_right=True)
    assert not dropping.is_right()
