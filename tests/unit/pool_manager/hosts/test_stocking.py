"""Which files a host has, is to get, and keeps."""

from __future__ import annotations

from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.stocking import FileSet, HostSpace
from pool_manager.hosts.stocking import Cache, CachedSet, plan
from registry.model import BundleFile

A, B, SHARED = (BundleFile(name, 10, name * 64) for name in "abc")


def kept(name: str, *files: BundleFile, hosts: int = 1) -> CachedSet:
    return CachedSet(FileSet(name, sum(one.size for one in files), hosts), files)


def room(name: str, limit: int = 100, state: HostState = HostState.UP) -> HostSpace:
    return HostSpace(HostRecord(name, state, 0.0), limit, {"cpu"})


def test_a_set_is_complete_with_all_of_its_files() -> None:
    """A file that two sets share counts for both; what is missing is sent only to its hosts."""
    wanted = [kept("one", A, SHARED, hosts=2), kept("two", B, SHARED, hosts=0)]
    rooms = [room("gpu2"), room("gpu3")]
    caches = [
        Cache(rooms[0], {A.sha256: 10, SHARED.sha256: 10}),
        Cache(rooms[1], {B.sha256: 10, SHARED.sha256: 10, "d" * 64: 10}),
    ]

    plans = plan(wanted, rooms, caches)

    assert plans["gpu2"].complete == {"one"}
    assert plans["gpu2"].missing == ()
    assert plans["gpu2"].kept == {A.sha256, SHARED.sha256}
    assert plans["gpu3"].complete == {"two"}
    assert plans["gpu3"].missing == ("one",)
    assert plans["gpu3"].kept == {A.sha256, SHARED.sha256}


def test_a_host_that_is_away_keeps_its_part() -> None:
    """Its files are not sent to another one while it may come back."""
    wanted = [kept("one", A)]
    rooms = [room("gpu2"), room("gpu3")]
    [target] = [
        name
        for name, one in plan(wanted, rooms, [Cache(r, {}) for r in rooms]).items()
        if one.missing
    ]
    other = {"gpu2": "gpu3", "gpu3": "gpu2"}[target]
    away = [room(target, state=HostState.UNREACHABLE), room(other)]

    assert plan(wanted, away, [Cache(away[1], {})])[other].missing == ()


def test_a_host_without_room_gets_nothing() -> None:
    """The limit of a cache is that of what is sent ahead of need, too."""
    rooms = [room("gpu2", limit=9)]

    assert plan([kept("one", A)], rooms, [Cache(rooms[0], {})])["gpu2"].missing == ()
