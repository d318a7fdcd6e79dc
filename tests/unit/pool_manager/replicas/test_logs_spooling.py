from __future__ import annotations

from pathlib import Path

from pool_manager.replicas.logs import DROPPED, Spool, fresh

ONE = "2026-01-02T03:04:05.000000001Z"
TWO = "2026-01-02T03:04:05.000000002Z"
BETWEEN = "2026-01-02T03:04:06.000000000Z"
LATER = "2026-01-02T03:04:06.500000000Z"
LAST = "2026-01-02T03:04:07.000000000Z"
SECOND = 1767323045


class Engine:
    """Has written these lines."""

    def __init__(self, *lines: tuple[str, str]) -> None:
        self.lines = list(lines)
        self.asked: list[int] = []

    async def ask(self, since_s: int) -> bytes | None:
        self.asked.append(since_s)
        return "".join(f"{stamp} {text}\n" for stamp, text in self.lines).encode()


async def test_each_line_is_copied_once(tmp_path: Path) -> None:
    """The engine is queried from the second of the last line, and returns that line again."""
    log, spool = tmp_path / "log", Spool()
    engine = Engine((ONE, "one"), (TWO, "two"))

    await spool.fetch("a1", log, {"c1": engine.ask})
    engine.lines.append((LATER, "three"))
    await spool.fetch("a1", log, {"c1": engine.ask})

    assert log.read_bytes() == b"one\ntwo\nthree\n"
    assert engine.asked == [0, SECOND]


async def test_the_next_server_goes_on(tmp_path: Path) -> None:
    """Lines copied by an earlier server are not copied again."""
    log, engine = tmp_path / "log", Engine((ONE, "one"), (TWO, "two"))
    await Spool().fetch("a1", log, {"c1": engine.ask})
    engine.lines.append((LATER, "three"))

    await Spool().fetch("a1", log, {"c1": engine.ask})

    assert log.read_bytes() == b"one\ntwo\nthree\n"


async def test_a_container_that_is_gone_leaves_what_there_is(tmp_path: Path) -> None:
    """A container without an answer changes nothing and creates no file."""
    log, spool = tmp_path / "log", Spool()

    async def gone(_since_s: int) -> bytes | None:
        return None

    await spool.fetch("a1", log, {"c1": gone})
    spool.forget("a1")

    assert not log.exists()


async def test_a_replica_may_go_while_its_output_is_read(tmp_path: Path) -> None:
    """If a replica is released during a fetch, the output is kept, waiters continue, and no state
    is left."""
    log, spool, engine = tmp_path / "log", Spool(), Engine((ONE, "one"))

    async def released(since_s: int) -> bytes | None:
        spool.forget("a1")
        return await engine.ask(since_s)

    await spool.fetch("a1", log, {"c1": released})

    assert log.read_bytes() == b"one\n"
    assert (spool._last, spool._locks) == ({}, {})


async def test_two_sources_are_merged_by_time(tmp_path: Path) -> None:
    """Lines of one copy are in order; a line that comes late, with an earlier time, is not lost."""
    log, spool = tmp_path / "log", Spool()
    server, sidecar = Engine((ONE, "one"), (LATER, "three")), Engine((TWO, "two"))
    sources = {"c1": server.ask, "c2": sidecar.ask}

    await spool.fetch("a1", log, sources)
    sidecar.lines.append((BETWEEN, "late"))
    await spool.fetch("a1", log, sources)
    sidecar.lines.append((LAST, "four"))
    await spool.fetch("a1", log, sources)

    assert log.read_bytes() == b"one\ntwo\nthree\nlate\nfour\n"


async def test_the_next_server_goes_on_with_two_sources(tmp_path: Path) -> None:
    """Neither repeats a line; the source whose line is not the log's last has left nothing out."""
    log, server, sidecar = tmp_path / "log", Engine((ONE, "one")), Engine((TWO, "two"))
    sources = {"c1": server.ask, "c2": sidecar.ask}
    await Spool().fetch("a1", log, sources)
    later = Spool()

    await later.fetch("a1", log, sources)
    server.lines = [(LATER, "three")]
    await later.fetch("a1", log, sources)
    assert log.read_bytes() == b"one\ntwo\nthree\n"

    server.lines = [(LAST, "five")]
    await later.fetch("a1", log, sources)
    assert log.read_bytes() == b"one\ntwo\nthree\n" + DROPPED + b"five\n"


def test_a_line_in_parts_is_one() -> None:
    """A line in parts is joined, since the engine repeats its timestamp; an unfinished line
    waits."""
    output = f"{ONE} abc{ONE} def\n{TWO} gh".encode()

    assert fresh(output, "") == [(ONE, b"abcdef\n")]


def test_what_an_engine_leaves_out_is_said() -> None:
    """If the last known line is missing from the output, a line says that output was dropped."""
    output = f"{TWO} b\n{LATER} c\n".encode()
    lines = [(TWO, b"b\n"), (LATER, b"c\n")]

    assert fresh(output, ONE) == [(TWO, DROPPED), *lines]
    assert fresh(output, ONE, is_own=False) == lines
    assert fresh(b"", ONE) == []


def test_nothing_new_is_nothing() -> None:
    """Lines no later than the last one are not copied."""
    assert fresh(f"{ONE} abc\n".encode(), ONE) == []
