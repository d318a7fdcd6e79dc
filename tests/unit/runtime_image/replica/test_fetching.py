"""Files by digest: whole files with their names, or an error with expected and actual value."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.enrolment import FETCH_PATIENCE_S, FETCHES_MAX, Fetch, FetchedFile
from runtime_image.contract.link import HEADER, Kind
from runtime_image.contract.model import PART_MAX
from runtime_image.link.frames import LinkError, pack
from runtime_image.replica import fetching
from runtime_image.replica.fetching import (
    AHEAD,
    RANGE,
    REFUSED_S,
    Fetched,
    Fetcher,
    FetchFailed,
    FetchSocket,
)
from tests.support.fetch_door import Ending, FetchDoor
from tests.support.small_disk import fill, small_disk

EMPTY = hashlib.sha256().hexdigest()
WAIT_S = 60.0
HEAD = 16


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FetchDoor]:
    """A door that serves."""
    made = FetchDoor(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that does not exist yet."""
    return tmp_path / "model"


class Time:
    """A clock that moves by its `step_s` with each look, and by the pauses."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        """Return the time."""
        self.now_s += self.step_s
        return self.now_s

    def wait(self, event: threading.Event, seconds: float) -> None:
        """Let a pause pass at once."""
        if not event.is_set():
            self.now_s += seconds


def content(size: int, seed: int = 0) -> bytes:
    """Return bytes in which no range is like another one."""
    return hashlib.shake_128(seed.to_bytes(4)).digest(size)


def fetcher(door: FetchDoor, folder: Path, clock: Time | None = None) -> Fetcher:
    """Return a fetcher whose pauses take no time."""
    clock = clock or Time()
    return Fetcher(door.dial, folder, clock=clock, wait=clock.wait)


def shown(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_all_files_get_their_names(door: FetchDoor, folder: Path) -> None:
    """Large and small ones, empty ones, two with the same content, and deep folders; nothing else
    is left. Readable for the user that a server runs as."""
    large, small = content(2 * RANGE + 12345), content(100, 1)
    wanted = {"model.onnx": large, "a/b/c/d/e/f/g/small": small, "again": small, "empty": b""}
    files = [door.add(path, data) for path, data in wanted.items()]
    done = fetcher(door, folder).fetch(files)
    assert done == Fetched(4, sum(map(len, wanted.values())), 0.0)
    assert shown(folder) == wanted
    assert (folder / "again").stat().st_mode & 0o777 == 0o644 & ~_umask()
    assert [one for one in folder.iterdir() if one.name.startswith(".")] == []


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def test_no_files_need_no_connection(door: FetchDoor, folder: Path) -> None:
    """A model without files is fetched at once."""
    assert fetcher(door, folder).fetch([]) == Fetched(0, 0, 0.0)
    assert not door.dials


def test_one_large_file_uses_all_connections(door: FetchDoor, folder: Path) -> None:
    """Each range is fetched once, over FETCHES_MAX connections at the same time."""
    together = threading.Barrier(FETCHES_MAX)
    file = door.add("model", content(2 * FETCHES_MAX * RANGE))
    firsts = iter([True] * FETCHES_MAX)

    def answer(id: int, fetch: Fetch) -> Iterator[bytes]:
        if next(firsts, False):
            together.wait(WAIT_S)
        yield from door.parts_and_end(id, fetch)

    door.answer = answer
    fetcher(door, folder).fetch([file])
    assert door.dials == FETCHES_MAX
    offsets = sorted(one["offset"] for one in door.fetches)
    assert offsets == list(range(0, file["size"], RANGE))


def test_a_small_model_uses_one_connection(door: FetchDoor, folder: Path) -> None:
    """A handshake costs more than its bytes."""
    fetcher(door, folder).fetch([door.add(str(n), content(1000, n)) for n in range(9)])
    assert door.dials == 1


def test_a_thousand_small_files(door: FetchDoor, folder: Path) -> None:
    """They are fetched over a few connections, and have their contents."""
    wanted = {f"{n % 7}/{n}": content(n, n) for n in range(1000)}
    files = [door.add(path, data) for path, data in wanted.items()]
    fetcher(door, folder).fetch(files)
    assert shown(folder) == wanted
    assert door.dials <= FETCHES_MAX


CUTS = {
    "before the handshake": -1,
    "in a header": HEAD // 2,
    "after a header": HEAD,
    "after a byte": HEAD + 1,
    "in the first part": HEAD + 300_000,
    "between parts": HEAD + PART_MAX,
    "in a later part": 5 * (HEAD + PART_MAX) + 77,
    "before END": 8 * (HEAD + PART_MAX),
    "in END": 8 * (HEAD + PART_MAX) + 5,
    "after END": 8 * (HEAD + PART_MAX) + HEAD,
}


@pytest.mark.parametrize("ending", ["notify", "fin", "reset"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_broken_connection_resumes_at_its_offset(
    door: FetchDoor, folder: Path, cut: int, ending: Ending
) -> None:
    """At every kind of point: another connection goes on, and no byte that came is asked for
    again, unless a reset lost it on the way."""
    wanted = content(RANGE)
    door.cuts, door.ending = {0: cut}, ending
    fetcher(door, folder).fetch([door.add("model", wanted)])
    assert shown(folder) == {"model": wanted}
    whole, rest = divmod(cut, HEAD + PART_MAX)
    served = whole * PART_MAX + max(0, rest - HEAD)
    offsets = [one["offset"] for one in door.fetches if one["offset"]]
    if 0 < served < RANGE and ending != "reset":
        assert offsets == [served]
    assert all(one["offset"] + one["length"] == RANGE for one in door.fetches)


def test_many_connections_break_at_once(door: FetchDoor, folder: Path) -> None:
    """Each range goes on where it was, on whatever connection."""
    wanted = {str(n): content(3 * RANGE + n, n) for n in range(2)}
    door.cuts = {n: n * 1_300_007 for n in range(3 * FETCHES_MAX)}
    fetcher(door, folder).fetch([door.add(path, data) for path, data in wanted.items()])
    assert shown(folder) == wanted
    assert door.dials > FETCHES_MAX


LIES: dict[str, tuple[Callable[[int, Fetch], bytes], str]] = {
    "too few": (lambda id, _: b"".join(pack(Kind.END, id)), "kind 24 with 0 bytes"),
    "too many": (
        lambda id, fetch: b"".join(pack(Kind.PART, id, bytes(fetch["length"] + 1))),
        "expected 1000 bytes more of model",
    ),
    "a huge part": (
        lambda id, _: HEADER.pack(2**31, id, Kind.PART, 0, 0, 0),
        "with 2147483648 bytes",
    ),
    "an empty part": (lambda id, _: b"".join(pack(Kind.PART, id)), "kind 23 with 0 bytes"),
    "another id": (lambda id, _: b"".join(pack(Kind.PART, id + 7, b"x")), "as answer 8"),
    "another kind": (lambda id, _: b"".join(pack(Kind.WELCOME, id)), "kind 2 with"),
    "an unknown kind": (lambda id, _: HEADER.pack(0, id, 250, 0, 0, 0), "kind 250"),
    "a meta": (lambda id, _: HEADER.pack(1, id, Kind.PART, 0, 9, 0), "kind 23"),
}


@pytest.mark.parametrize(("lie", "text"), LIES.values(), ids=LIES)
def test_anything_but_the_bytes_is_an_error(
    door: FetchDoor, folder: Path, lie: Callable[[int, Fetch], bytes], text: str
) -> None:
    """The text names what was expected and what came; nothing is left, and nothing is tried
    again."""
    file = door.add("model", content(1000))
    door.answer = lambda id, fetch: iter([lie(id, fetch)])
    with pytest.raises(FetchFailed, match=text) as error:
        fetcher(door, folder).fetch([file])
    assert error.value.stage == "fetch"
    assert file["sha256"] in str(error.value)
    assert shown(folder) == {}
    assert door.dials == 1


def test_wrong_bytes_never_get_the_name(door: FetchDoor, folder: Path) -> None:
    """The text has both hashes."""
    file = door.add("model", wanted := content(RANGE + 10))
    door.files[file["sha256"]] = bad = bytes(len(wanted))
    got = hashlib.sha256(bad).hexdigest()
    with pytest.raises(FetchFailed, match=f"model with sha256 {file['sha256']}, got {got}"):
        fetcher(door, folder).fetch([file])
    assert shown(folder) == {}


def test_an_empty_file_has_its_hash_checked(door: FetchDoor, folder: Path) -> None:
    """Although nothing is fetched for it."""
    with pytest.raises(FetchFailed, match=f"got {EMPTY}"):
        fetcher(door, folder).fetch([{"path": "a", "size": 0, "sha256": "0" * 64}])


def refusal(id: int, reason: str = "not yours") -> bytes:
    """Return a FAILED."""
    return b"".join(pack(Kind.FAILED, id, b'{"reason": "%s"}' % reason.encode()))


def test_a_file_that_stays_refused_is_an_error(door: FetchDoor, folder: Path) -> None:
    """The text has the server's reason. It is tried for REFUSED_S."""
    door.answer = lambda id, _: iter([refusal(id)])
    clock = Time()
    with pytest.raises(FetchFailed, match=r"a \(sha256 .*the server refused it: not yours"):
        fetcher(door, folder, clock).fetch([door.add("a", b"abc")])
    assert REFUSED_S <= clock.now_s < REFUSED_S + fetching.PAUSE_MAX_S


def test_a_server_that_refuses_at_first_is_asked_again(door: FetchDoor, folder: Path) -> None:
    """One that has just started does not know yet which files are whose; one that is full refuses
    the connection."""
    said = iter([refusal, lambda _: refusal(0)])

    def answer(id: int, fetch: Fetch) -> Iterator[bytes]:
        if (refuse := next(said, None)) is None:
            yield from door.parts_and_end(id, fetch)
        else:
            yield refuse(id)

    door.answer = answer
    fetcher(door, folder).fetch([door.add("a", b"abc")])
    assert shown(folder) == {"a": b"abc"}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"reason": 5}', b"[" * 5000])
def test_a_refusal_without_a_proper_reason(door: FetchDoor, folder: Path, body: bytes) -> None:
    """It counts as a refusal, whatever its body is."""
    door.answer = lambda id, _: iter([b"".join(pack(Kind.FAILED, id, body))])
    with pytest.raises(FetchFailed, match="the server refused it"):
        fetcher(door, folder).fetch([door.add("a", b"abc")])


def test_a_server_that_is_away_for_30_s(door: FetchDoor, folder: Path) -> None:
    """It is dialled again, with pauses that grow, and the fetch goes on where it was."""
    wanted = content(RANGE)
    clock, dials = Time(), []
    door.cuts = {0: HEAD + 1000}

    def dial() -> FetchSocket:
        dials.append(clock.now_s)
        if 0 < clock.now_s < 30:
            raise ConnectionRefusedError("refused")
        return door.dial()

    Fetcher(dial, folder, clock=clock, wait=clock.wait).fetch([door.add("model", wanted)])
    assert shown(folder) == {"model": wanted}
    pauses = [b - a for a, b in itertools.pairwise(dials)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == fetching.PAUSE_MAX_S


@pytest.mark.parametrize("error", [OSError("no route"), LinkError("an earlier epoch")])
def test_a_server_that_stays_away(folder: Path, error: Exception) -> None:
    """After FETCH_PATIENCE_S without progress it ends; the text says what the last dial met."""
    clock = Time()

    def dial() -> FetchSocket:
        raise error

    files: list[FetchedFile] = [{"path": "a", "size": 5, "sha256": EMPTY}]
    with pytest.raises(FetchFailed, match=f"within 180 s, got 0 .*{error}"):
        Fetcher(dial, folder, clock=clock, wait=clock.wait).fetch(files)
    assert FETCH_PATIENCE_S <= clock.now_s < FETCH_PATIENCE_S + fetching.PAUSE_MAX_S


def test_a_server_that_drips(door: FetchDoor, folder: Path) -> None:
    """Bytes alone are no progress: FETCH_PROGRESS_MIN has to come within FETCH_PATIENCE_S."""
    file = door.add("model", content(RANGE))

    def answer(id: int, fetch: Fetch) -> Iterator[bytes]:
        for part in door.parts_and_end(id, fetch):
            yield from (part[at : at + 1] for at in range(min(2000, len(part))))

    door.answer = answer
    with pytest.raises(FetchFailed, match=r"expected at least 1048576 bytes .* within 180 s, got"):
        fetcher(door, folder, Time(step_s=1.0)).fetch([file])
    assert shown(folder) == {}


class Slow:
    """A connection that brings BYTES_S in a second of the test's clock."""

    BYTES_S = 20_000

    def __init__(self, sock: FetchSocket, clock: Time) -> None:
        self._sock, self._clock = sock, clock
        self.settimeout, self.sendall = sock.settimeout, sock.sendall
        self.shutdown, self.close = sock.shutdown, sock.close

    def recv_into(self, buffer: memoryview) -> int:
        count = self._sock.recv_into(buffer)
        self._clock.now_s += count / self.BYTES_S
        return count


def test_a_slow_server_is_waited_for(door: FetchDoor, folder: Path) -> None:
    """What counts is the progress, not the whole time."""
    wanted = content(RANGE)
    clock = Time()

    def dial() -> FetchSocket:
        return Slow(door.dial(), clock)

    Fetcher(dial, folder, clock=clock, wait=clock.wait).fetch([door.add("model", wanted)])
    assert clock.now_s > 2 * FETCH_PATIENCE_S
    assert shown(folder) == {"model": wanted}


class Silent:
    """A connection on which nothing comes: each read times out."""

    def settimeout(self, seconds: float | None) -> None:
        assert seconds == fetching.SILENCE_S

    def sendall(self, data: bytes) -> None: ...

    def recv_into(self, buffer: memoryview) -> int:
        raise TimeoutError

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None: ...


def test_a_silent_connection_counts_as_broken(folder: Path) -> None:
    """After SILENCE_S; the text says so."""
    clock = Time()
    files: list[FetchedFile] = [{"path": "a", "size": 5, "sha256": EMPTY}]
    with pytest.raises(FetchFailed, match="nothing moved for 60 s"):
        Fetcher(Silent, folder, clock=clock, wait=clock.wait).fetch(files)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_cancelled_fetch_ends_at_once(door: FetchDoor, folder: Path, is_early: bool) -> None:
    """Also one that waits for bytes; its threads are over, and nothing is left."""
    asked, over = threading.Event(), threading.Event()

    def answer(_id: int, _fetch: Fetch) -> Iterator[bytes]:
        asked.set()
        over.wait(WAIT_S)
        yield b""

    door.answer = answer
    fetch = fetcher(door, folder)
    errors: list[BaseException] = []

    def run() -> None:
        with pytest.raises(FetchFailed, match="cancelled") as error:
            fetch.fetch([door.add("a", b"abc")])
        errors.append(error.value)

    if is_early:
        fetch.cancel()
    thread = threading.Thread(target=run)
    thread.start()
    if not is_early:
        assert asked.wait(WAIT_S)
        fetch.cancel()
    thread.join(WAIT_S)
    assert errors
    over.set()
    assert shown(folder) == {}


def test_what_is_there_is_not_fetched(door: FetchDoor, folder: Path) -> None:
    """By content, not by name or size; a link is none of ours."""
    wanted = {"a": content(10, 1), "b": content(10, 2), "c": content(10, 3), "d": b""}
    files = [door.add(path, data) for path, data in wanted.items()]
    folder.mkdir()
    (folder / "a").write_bytes(wanted["a"])
    (folder / "b").write_bytes(bytes(10))
    (folder / "other").write_bytes(wanted["c"])
    (folder / "c").symlink_to("other")
    (folder / "d").write_bytes(b"long")
    fetch = fetcher(door, folder)
    assert fetch.fetch(files) == Fetched(3, 20, 0.0)
    assert shown(folder) == {**wanted, "other": wanted["c"]}
    assert not (folder / "c").is_symlink()
    assert fetch.fetch(files) == Fetched(0, 0, 0.0)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a/./b",
            "a//b",
            "a/",
            ".",
            "..",
            "a\0b",
            "a\ud800",
        ),
        *(5, None, "/".join("a" * 65)),
    ],
)
def test_a_hostile_path_is_refused(door: FetchDoor, folder: Path, path: Any) -> None:
    """Before anything is fetched."""
    file = {**door.add("a", b"abc"), "path": path}
    with pytest.raises(FetchFailed, match="expected paths below the model folder"):
        fetcher(door, folder).fetch([door.add("b", b"b"), file])  # type: ignore[list-item]
    assert not door.dials
    assert not folder.exists() or shown(folder) == {}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (5, "expected a list of files, got int"),
        ([5], "expected paths"),
        ([{"path": "a"}], "expected the bytes of a, got 'None'"),
        ([{"path": "a", "size": -1, "sha256": EMPTY}], "got '-1'"),
        ([{"path": "a", "size": True, "sha256": EMPTY}], "got 'True'"),
        ([{"path": "a", "size": 1, "sha256": EMPTY.upper()}], "expected the sha256 of a"),
        ([{"path": "a", "size": 1, "sha256": EMPTY + "\n"}], "expected the sha256 of a"),
        ([{"path": "a", "size": 0, "sha256": EMPTY}] * 2, "each once, got 'a'"),
    ],
)
def test_a_malformed_list_is_refused(folder: Path, files: Any, text: str) -> None:
    """With what was expected and what came."""
    with pytest.raises(FetchFailed, match=text):
        Fetcher(Silent, folder).fetch(files)


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b", "a")])
def test_a_file_that_is_also_a_folder(door: FetchDoor, folder: Path, paths: list[str]) -> None:
    """The folder of one file is the path of the other: neither order is stored."""
    files = [door.add(path, path.encode()) for path in paths]
    with pytest.raises(FetchFailed, match="cannot be stored"):
        fetcher(door, folder).fetch(files)


def test_too_little_space_is_seen_before(folder: Path) -> None:
    """Nothing is fetched; the text has both sizes."""
    files: list[FetchedFile] = [{"path": "a", "size": 2**62, "sha256": EMPTY}]
    with pytest.raises(FetchFailed, match=f"expected {2**62} bytes free in .*, got [0-9]+"):
        Fetcher(Silent, folder).fetch(files)


def test_a_disk_that_fills_up_is_named(door: FetchDoor, tmp_path: Path) -> None:
    """No part of the file is left."""
    with small_disk(tmp_path / "disk", 12) as disk:

        def answer(id: int, fetch: Fetch) -> Iterator[bytes]:
            if fetch["offset"] == 0:
                fill(disk)
            yield from door.parts_and_end(id, fetch)

        door.answer = answer
        with pytest.raises(FetchFailed, match=f"No space left .*in {disk}/model"):
            fetcher(door, disk / "model").fetch([door.add("model", content(RANGE + 1))])
        assert shown(disk / "model") == {}


def test_memory_is_bounded(door: FetchDoor, folder: Path) -> None:
    """While 200 MB arrive, fetcher and door of this process together hold no more than a few
    buffers for each connection."""
    size = 200_000_000
    zeros = bytes(PART_MAX)
    digest = hashlib.sha256()
    for at in range(0, size, len(zeros)):
        digest.update(zeros[: size - at])

    def answer(id: int, fetch: Fetch) -> Iterator[bytes]:
        left = fetch["length"]
        while left:
            part = zeros[:left]
            left -= len(part)
            yield from map(bytes, pack(Kind.PART, id, part))
        yield b"".join(pack(Kind.END, id))

    door.answer = answer
    file: FetchedFile = {"path": "model", "size": size, "sha256": digest.hexdigest()}
    tracemalloc.start()
    try:
        fetcher(door, folder).fetch([file])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (folder / "model").stat().st_size == size
    assert peak < FETCHES_MAX * AHEAD * 2 * 2**20
