"""One watcher's place in the news."""

from __future__ import annotations

from admin.events.follower import Follower


async def test_a_follower_reads_on_from_where_he_is() -> None:
    """Each read tells him what is new, and with a beat only the last one."""
    asked: list[tuple[int, str]] = []

    def read(seq: int, about: str) -> tuple[bytes, int]:
        asked.append((seq, about))
        return b"n", seq + 5

    follower = Follower(read, lambda _one: None, 2, "f")
    await follower.news()
    assert follower.take() == b"n"
    follower.beat(b"1")
    follower.beat(b"2")
    await follower.news()

    assert follower.take() == b"n2"
    assert asked == [(2, "f"), (7, "f")]


async def test_a_follower_is_let_go() -> None:
    """Whoever waits for news hears that it is over, and the owner that he left."""
    left: list[Follower] = []
    follower = Follower(lambda seq, _about: (b"", seq), left.append, 0, "")
    await follower.news()
    follower.close()
    await follower.news()
    follower.leave()

    assert follower.is_closed
    assert left == [follower]
