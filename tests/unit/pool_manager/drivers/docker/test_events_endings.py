"""Records of how containers ended."""

from __future__ import annotations

from pool_manager.drivers.docker.events import (
    EARLY_MAX,
    ContainerEvent,
    EndedWhileListing,
    KnownContainer,
    read_event,
)


def test_a_server_that_may_not_run_here() -> None:
    """The doubt is added to the end of the server by an error, not to others."""
    known = KnownContainer("c2", "c1", doubt="the image is for arm64, this machine is amd64")

    assert known.describe_exit("c2", 2).endswith("code 2; " + known.doubt)
    assert known.doubt not in known.describe_exit("c2", 0)
    assert known.doubt not in known.describe_exit("c1", 2)


def test_events_are_read() -> None:
    """Exit codes are parsed from text; an event of another container has no replica id."""
    labels = {"fngate.replica": "aaaa0001"}
    die = {"Action": "die", "Actor": {"ID": "c1", "Attributes": {**labels, "exitCode": "3"}}}
    oom = {"Action": "oom", "Actor": {"ID": "c1", "Attributes": labels}}

    assert read_event(die) == ("aaaa0001", ContainerEvent("c1", 3))
    assert read_event(oom) == ("aaaa0001", ContainerEvent("c1", None))
    assert read_event({"Action": "die", "Actor": {"ID": "c2"}}) == ("", ContainerEvent("c2", -1))


async def test_early_news_counts_for_its_container() -> None:
    """Of the containers that a start tried, only the early events of the last one count."""
    known = KnownContainer()
    known.keep(ContainerEvent("first try", 128))
    known.keep(ContainerEvent("second try", 3))

    assert known.start_returned("second try") == [ContainerEvent("second try", 3)]
    assert (known.id, known.early, known.settled.is_set()) == ("second try", [], True)


async def test_early_news_has_a_limit() -> None:
    """The number of kept early events is limited."""
    known = KnownContainer()
    for code in range(100):
        known.keep(ContainerEvent("c1", code))

    assert len(known.start_returned("c1")) == EARLY_MAX


async def test_a_failed_start_is_an_end() -> None:
    """A failed start wakes its waiters, which find no running container."""
    known = KnownContainer()
    known.start_failed()

    assert known.settled.is_set()
    assert known.is_reported


def test_what_ends_during_a_list_is_taken_off_it() -> None:
    """Containers that end during a list are removed from it; concurrent lists do not disturb each
    other."""
    endings = EndedWhileListing()
    listed = [{"Id": "c1"}, {"Id": "c2"}]
    endings.note("c2")
    with endings.listing():
        assert endings.without(listed) == listed
        with endings.listing():
            endings.note("c1")
        assert endings.without(listed) == [{"Id": "c2"}]
    with endings.listing():
        assert endings.without(listed) == listed
