"""One watcher's place in the news."""

from __future__ import annotations

from admin.events.watch import Follower


async def test_a_follower_reads_on_from_where_he_is() -> None:
    """Each read tells him what is new, and with a beat only the last one."""
    asked: list[tuple[int, str]] = []

    def read(seq: int, about: str) -> tuple[list[bytes], int]:
        asked.append((seq, about))
        return [b"n"], seq + 5

    follower = Follower(read, 2, "f")
    await follower.news()
    assert follower.take() == [b"n"]
    follower.beat(b"1")
    follower.beat(b"2")
    await follower.news()

    assert follower.take() == [b"n", b"2"]
    assert asked == [(2, "f"), (7, "f")]
