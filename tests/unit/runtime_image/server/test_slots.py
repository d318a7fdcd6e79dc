"""Tests of single rules of a server's slots."""

from __future__ import annotations

import pytest

from runtime_image.contract.link import Kind, NotStarted
from runtime_image.contract.server import FREE_MAX, MAX_GRACE_S, QUIESCE_S
from runtime_image.link.frames import LinkError
from runtime_image.server.slots import (
    CONNECT_S,
    IDLE_S,
    OFFER_S,
    Connect,
    EndLink,
    Key,
    NotIdle,
    Parked,
    Phase,
    Rename,
    Send,
    Shut,
    SlotTable,
    Stop,
)

A, B, C = 1, 2, 3
MAX_S = 30.0


def table(limit: int = 1, *links: int) -> SlotTable:
    """Return a table at time 0 with links A, B and C, or these."""
    made = SlotTable(limit, MAX_S, 0.0)
    for link in links or (A, B, C):
        made.join(link, 0.0)
    return made


def opened(slots: SlotTable, link: int, id: int, now: float = 0.0) -> None:
    """Open an exchange whose socket is passed at once."""
    assert slots.open(link, id, now) == [Connect(Key(link, id))]
    assert slots.connected(Key(link, id), now) == []


def full(link: int, id: int) -> Send:
    """Return the answer to an OPEN without room."""
    return Send(link, Kind.NOT_STARTED, id, NotStarted.FULL)


def offer(link: int) -> Send:
    """Return the offer of one slot."""
    return Send(link, Kind.WINDOW, aux=1)


def haste(link: int) -> Send:
    """Return the frame that has a link tell at once which of its connections are idle."""
    return Send(link, Kind.RECALL)


def test_an_open_without_room_waits_for_an_offer() -> None:
    """The slot that gets free is offered to the link that waits, and to nobody else."""
    slots = table()
    opened(slots, A, 1)

    assert slots.open(B, 7, 1.0) == [full(B, 7), haste(A)]
    assert slots.end(A, 1, 2.0) == [Shut(Key(A, 1)), offer(B)]
    assert slots.open(A, 2, 2.0) == [full(A, 2)]
    assert slots.open(B, 8, 2.0) == [Connect(Key(B, 8)), haste(B)]


def test_waiting_links_take_turns() -> None:
    """Slots go round robin over the links, whatever each one waits for."""
    slots = table()
    opened(slots, A, 1)
    for link in (B, C, B, C):
        slots.open(link, 10 + link, 0.0)
    turns = []
    holder = Key(A, 1)
    for id in range(20, 26):
        (_, offered) = slots.end(*holder, 1.0)
        assert isinstance(offered, Send)
        turns.append(offered.link)
        opened_by = slots.open(offered.link, id, 1.0)
        assert opened_by[0] == Connect(Key(offered.link, id))
        holder = Key(offered.link, id)

    assert turns == [B, C, B, C, B, C]


def test_a_declined_offer_goes_to_the_next_link() -> None:
    """END with id 0 leaves the rotation, and the answer says so."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)
    slots.open(C, 1, 0.0)
    slots.end(A, 1, 1.0)

    assert slots.end(B, 0, 1.0) == [Send(B, Kind.WINDOW), offer(C)]
    assert slots.end(C, 0, 1.0) == [Send(C, Kind.WINDOW)]
    assert slots.taken == 0


def test_a_late_decline_takes_nothing() -> None:
    """A plain OPEN may take an offer that has not arrived yet; its decline is then void, and the
    link stays in the rotation."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)
    slots.end(A, 1, 1.0)
    assert slots.open(B, 2, 1.0) == [Connect(Key(B, 2)), haste(B)]
    assert slots.open(B, 3, 1.0) == [full(B, 3)]

    assert slots.end(B, 0, 1.0) == []
    assert slots.end(B, 2, 2.0) == [Shut(Key(B, 2)), offer(B)]


def test_a_late_decline_that_meets_the_next_offer_ends_the_wait() -> None:
    """It takes that offer back, which its gateway has yet to answer: the gateway must not go on
    waiting for one, because it is in the rotation no more."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)
    slots.end(A, 1, 1.0)
    slots.open(B, 2, 1.0)
    assert slots.open(B, 3, 1.0) == [full(B, 3)]
    assert slots.end(B, 2, 2.0) == [Shut(Key(B, 2)), offer(B)]

    assert slots.end(B, 0, 2.0) == [Send(B, Kind.WINDOW)]
    assert slots.open(B, 4, 2.0) == [Connect(Key(B, 4))]
    assert slots.end(B, 4, 3.0) == [Shut(Key(B, 4))]


def test_an_offer_that_is_not_answered_counts_as_declined() -> None:
    """A gateway that hangs holds an offered slot for OFFER_S, and is then no longer full."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)
    slots.open(C, 1, 0.0)
    slots.end(A, 1, 1.0)

    assert slots.tick(1.0 + OFFER_S - 0.1) == []
    assert slots.tick(1.0 + OFFER_S) == [Send(B, Kind.WINDOW), offer(C)]


def test_a_kept_connection_is_reused_under_another_id() -> None:
    """REUSE renames the idle connection, which still is a slot."""
    slots = table()
    opened(slots, A, 1)

    assert slots.end(A, 1, 1.0, is_kept=True) == []
    assert slots.taken == 1
    assert slots.reuse(A, 2, 1, 2.0) == [Rename(Key(A, 1), Key(A, 2))]
    assert slots.end(A, 1, 2.0) == []
    assert slots.in_use == 1


def test_reuse_of_a_connection_that_runs_breaks_the_protocol() -> None:
    """Only an idle connection can be reused."""
    slots = table()
    opened(slots, A, 1)

    with pytest.raises(LinkError, match="expected an idle connection to reuse, got open 1"):
        slots.reuse(A, 2, 1, 0.0)


def test_reuse_of_a_connection_that_was_shut_is_ignored() -> None:
    """The gateway reads the end of a connection that was shut while REUSE was on its way."""
    slots = table()
    opened(slots, A, 1)
    slots.end(A, 1, 0.0, is_kept=True)
    assert slots.tick(IDLE_S) == [Shut(Key(A, 1))]

    assert slots.reuse(A, 2, 1, IDLE_S) == []
    assert slots.taken == 0


@pytest.mark.parametrize("id", [0, 1])
def test_an_id_must_be_new(id: int) -> None:
    """Id 0 concerns the link, and an id in use would hide its exchange."""
    slots = table(2)
    opened(slots, A, 1)

    with pytest.raises(LinkError, match="expected a new id"):
        slots.open(A, id, 0.0)


def test_an_idle_connection_is_recalled_for_each_waiting_link() -> None:
    """One idle connection per waiting link, the oldest first; after a reuse, another one."""
    slots = table(3)
    for id in (1, 2, 3):
        opened(slots, A, id)
        slots.end(A, id, 1.0, is_kept=True)

    assert slots.open(B, 1, 2.0) == [full(B, 1), Send(A, Kind.RECALL, 1)]
    assert slots.open(C, 1, 2.0) == [full(C, 1), Send(A, Kind.RECALL, 2)]
    recalled = slots.reuse(A, 4, 1, 2.0)
    assert recalled == [Rename(Key(A, 1), Key(A, 4)), haste(A), Send(A, Kind.RECALL, 3)]
    assert slots.end(A, 2, 2.0) == [Shut(Key(A, 2)), offer(B)]


def test_a_connection_that_is_kept_while_a_link_waits_is_recalled_at_once() -> None:
    """END with KEPT may have been sent before the other link waited."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)

    assert slots.end(A, 1, 1.0, is_kept=True) == [Send(A, Kind.RECALL, 1)]


def test_a_link_that_does_not_know_that_it_waits_is_hastened() -> None:
    """A gateway ignores FULL for an exchange that it has ended, so it may keep connections."""
    slots = table()
    opened(slots, A, 1)
    assert slots.open(A, 2, 0.0) == [full(A, 2), haste(A)]
    assert slots.open(B, 1, 0.0) == [full(B, 1)]

    slots.end(A, 2, 0.0)
    assert slots.end(A, 1, 0.0, is_kept=True) == [Send(A, Kind.RECALL, 1)]


def test_links_tell_ends_late_again_when_nobody_waits() -> None:
    """WINDOW revokes RECALL without an id, at a tick without waiting links; once."""
    slots = table()
    opened(slots, A, 1)
    assert slots.open(B, 1, 0.0) == [full(B, 1), haste(A)]
    assert slots.open(C, 1, 0.0) == [full(C, 1)]
    assert slots.tick(0.5) == []
    slots.end(A, 1, 1.0)
    for link in (B, C, B):
        slots.end(link, 0, 1.0)

    assert slots.tick(1.5) == [Send(A, Kind.WINDOW)]
    assert slots.tick(2.0) == []


def test_a_late_end_counts_from_when_it_was() -> None:
    """Busy and idle times are those of the exchange, not of the frame; in any order of frames."""
    slots = table(2)
    opened(slots, A, 1)
    opened(slots, B, 1)
    slots.end(A, 1, 5.0, is_kept=True, ago_ms=1000)
    slots.end(B, 1, 6.0, is_kept=True, ago_ms=3000)
    assert slots.idle_ms(6.0) == 2000
    assert slots.busy_ms(6.0) == 4000
    slots.reuse(A, 2, 1, 10.0)
    slots.end(A, 2, 11.0, is_kept=True, ago_ms=60_000)
    assert (slots.idle_ms(11.0), slots.busy_ms(11.0)) == (1000, 4000)


def test_a_refused_connection_frees_its_slot() -> None:
    """REFUSED is the answer, and the slot goes to the next link."""
    slots = table()
    slots.open(A, 1, 0.0)
    slots.open(B, 1, 0.0)
    refused = Send(A, Kind.NOT_STARTED, 1, NotStarted.REFUSED)

    assert slots.refused(Key(A, 1), 1.0) == [Shut(Key(A, 1)), refused, offer(B)]
    assert slots.refused(Key(A, 1), 1.0) == []


def test_a_connection_that_takes_too_long_is_refused() -> None:
    """A full backlog lets a connection hang."""
    slots = table()
    slots.open(A, 1, 0.0)
    refused = Send(A, Kind.NOT_STARTED, 1, NotStarted.REFUSED)

    assert slots.tick(CONNECT_S - 0.1) == []
    assert slots.tick(CONNECT_S) == [Shut(Key(A, 1)), refused]


def test_an_exchange_is_shut_after_max_s_and_its_grace() -> None:
    """The time counts from the connection."""
    slots = table()
    slots.open(A, 1, 0.0)
    slots.connected(Key(A, 1), 1.0)

    assert slots.tick(1.0 + MAX_S + MAX_GRACE_S - 0.1) == []
    assert slots.tick(1.0 + MAX_S + MAX_GRACE_S) == [Shut(Key(A, 1))]
    assert slots.connected(Key(A, 1), 40.0) == []


def test_a_kept_connection_that_was_not_passed_is_shut() -> None:
    """A gateway cannot keep what it never got."""
    slots = table()
    slots.open(A, 1, 0.0)

    assert slots.end(A, 1, 0.0, is_kept=True) == [Shut(Key(A, 1))]


def test_free_exchanges_take_no_slot_and_are_no_use() -> None:
    """FREE_MAX of them may run at once; over that, FULL without a place in the rotation."""
    slots = table()
    opened(slots, A, 1)
    for id in range(2, 2 + FREE_MAX):
        assert slots.open(B, id, 1.0, is_free=True) == [Connect(Key(B, id))]

    assert slots.open(C, 1, 1.0, is_free=True) == [full(C, 1)]
    assert slots.end(A, 1, 1.0) == [Shut(Key(A, 1))]
    assert slots.end(B, 2, 2.0, is_kept=True) == [Shut(Key(B, 2))]
    assert slots.idle_ms(5.0) == 4000
    assert slots.busy_ms(5.0) == 1000
    assert slots.drain(4000, 5.0)[-1] == Send(C, Kind.QUIESCE)


def test_a_lost_link_frees_everything_it_held() -> None:
    """Connections are shut; its offers and its place in the rotation are gone."""
    slots = table(2)
    opened(slots, A, 1)
    opened(slots, A, 2)
    slots.open(B, 1, 0.0)
    slots.open(C, 1, 0.0)
    assert slots.end(A, 1, 0.0) == [Shut(Key(A, 1)), offer(B)]

    assert slots.link_lost(B, 0.0) == [offer(C)]
    assert slots.link_lost(A, 0.0) == [Shut(Key(A, 2)), offer(C)]
    assert slots.link_lost(A, 0.0) == []


def test_busy_time_counts_once_while_anything_is_open() -> None:
    """The union of all exchanges, kept connections not included."""
    slots = table(2)
    slots.open(A, 1, 1.0)
    slots.connected(Key(A, 1), 1.5)
    opened(slots, A, 2, 2.0)
    slots.end(A, 1, 3.0)
    assert slots.busy_ms(3.5) == 2500
    assert slots.idle_ms(3.5) == 0
    slots.end(A, 2, 4.0, is_kept=True)

    assert slots.busy_ms(9.0) == 3000
    assert slots.idle_ms(9.0) == 5000


QUIESCES = [Send(A, Kind.QUIESCE), Send(B, Kind.QUIESCE), Send(C, Kind.QUIESCE)]
RESUMED = [Send(A, Kind.WINDOW), Send(B, Kind.WINDOW), Send(C, Kind.WINDOW)]


def test_a_drain_is_refused_at_once_while_in_use() -> None:
    """NOT_IDLE says how long ago the last exchange ended, 0 while one runs."""
    slots = table()
    opened(slots, A, 1)
    assert slots.drain(500, 1.0) == [NotIdle(0)]
    slots.end(A, 1, 2.0)

    assert slots.drain(500, 2.25) == [NotIdle(250)]


def test_a_drain_stops_the_server_once_all_gateways_have_answered() -> None:
    """Not before the last one; idle connections do not matter."""
    slots = table()
    assert slots.drain(500, 1.0) == QUIESCES

    assert slots.quiesced(A, 0, 1.0) == []
    assert slots.quiesced(B, 0, 1.0) == []
    assert slots.quiesced(C, 0, 1.0) == [Stop()]
    assert slots.phase is Phase.STOPPED
    draining = Send(A, Kind.NOT_STARTED, 1, NotStarted.DRAINING)
    assert slots.open(A, 1, 1.0) == [draining]
    assert slots.quiesce(1.0) == slots.resume(1.0) == slots.drain(0, 1.0) == []
    assert slots.join(4, 1.0) == []


def test_a_drain_without_gateways_stops_at_once() -> None:
    """Nobody has to be asked."""
    assert SlotTable(1, MAX_S, 0.0).drain(0, 0.0) == [Stop()]


def test_an_open_that_crossed_quiesce_refuses_a_conditional_drain() -> None:
    """The exchange is served, the gateways resume, and late answers to QUIESCE do no harm."""
    slots = table()
    slots.drain(500, 1.0)
    slots.quiesced(B, 0, 1.0)

    assert slots.open(A, 1, 1.0) == [*RESUMED, NotIdle(0), Connect(Key(A, 1))]
    assert slots.quiesced(A, 1, 1.0) == []
    slots.end(A, 1, 1.0)
    slots.drain(500, 2.0)
    assert slots.quiesced(C, 0, 2.0) == []
    assert slots.quiesced(A, 0, 2.0) == []
    assert slots.quiesced(B, 0, 2.0) == []
    assert slots.quiesced(C, 0, 2.0) == [Stop()]


def test_a_reuse_that_crossed_quiesce_refuses_a_conditional_drain() -> None:
    """A request may have been written to the connection."""
    slots = table()
    opened(slots, A, 1)
    slots.end(A, 1, 0.0, is_kept=True)
    slots.drain(500, 1.0)

    assert slots.reuse(A, 2, 1, 1.0) == [*RESUMED, NotIdle(0), Rename(Key(A, 1), Key(A, 2))]


def test_a_gateway_with_exchanges_refuses_a_conditional_drain() -> None:
    """It may have asked for one that was refused meanwhile, and asks again."""
    slots = table()
    slots.drain(500, 1.0)

    assert slots.quiesced(A, 1, 1.0) == [*RESUMED, NotIdle(0)]


def test_free_exchanges_do_not_refuse_a_drain() -> None:
    """They are served until the server stops."""
    slots = table()
    slots.drain(500, 1.0)

    assert slots.open(A, 1, 1.0, is_free=True) == [Connect(Key(A, 1))]
    for link in (A, B):
        slots.quiesced(link, 0, 1.0)
    assert slots.quiesced(C, 0, 1.0) == [Stop()]


@pytest.mark.parametrize("is_soft", [False, True])
def test_an_unconditional_drain_waits_for_what_is_open(is_soft: bool) -> None:
    """New exchanges are refused; one on a kept connection runs to its end."""
    slots = table(2)
    opened(slots, A, 1)
    opened(slots, A, 2)
    slots.end(A, 2, 0.0, is_kept=True)
    begun = slots.quiesce(1.0) if is_soft else slots.drain(0, 1.0)
    assert begun == QUIESCES

    draining = Send(B, Kind.NOT_STARTED, 1, NotStarted.DRAINING)
    assert slots.open(B, 1, 1.0) == [draining]
    assert slots.reuse(A, 3, 2, 1.0) == [Rename(Key(A, 2), Key(A, 3))]
    for link, count in ((A, 2), (B, 0), (C, 0)):
        assert slots.quiesced(link, count, 1.0) == []
    assert slots.end(A, 1, 2.0) == [Shut(Key(A, 1))]
    assert slots.end(A, 3, 2.0) == [Shut(Key(A, 3)), Stop()]


def test_a_soft_drain_can_be_revoked_until_it_is_over() -> None:
    """All gateways resume, no link is full any more, and the manager is told."""
    slots = table()
    opened(slots, A, 1)
    slots.open(B, 1, 0.0)
    slots.quiesce(1.0)

    assert slots.resume(2.0) == [*RESUMED, NotIdle(0)]
    assert slots.end(A, 1, 3.0) == [Shut(Key(A, 1))]
    assert slots.resume(4.0) == [NotIdle(1000)]


def test_a_drain_can_be_tightened_but_not_loosened() -> None:
    """QUIESCE is sent once; a hard drain ignores RESUME and conditional drains."""
    slots = table()
    slots.drain(500, 1.0)

    assert slots.quiesce(1.0) == []
    assert slots.drain(500, 1.0) == []
    assert slots.drain(0, 1.0) == []
    assert slots.quiesce(1.0) == slots.resume(1.0) == []
    assert slots.phase is Phase.HARD


def parked(slots: SlotTable, now: float = 1.0) -> None:
    """Park a server that is idle."""
    assert slots.park(500, now) == QUIESCES
    for link in (A, B):
        assert slots.quiesced(link, 0, now) == []
    assert slots.quiesced(C, 0, now) == [Parked()]


def test_no_exchange_is_opened_while_a_server_is_parked() -> None:
    """Neither those without a slot, nor those of a gateway that comes meanwhile."""
    slots = table()
    parked(slots)

    for is_free in (False, True):
        refused = Send(A, Kind.NOT_STARTED, 1, NotStarted.DRAINING)
        assert slots.open(A, 1, 2.0, is_free=is_free) == [refused]
    assert slots.join(4, 2.0) == [Send(4, Kind.QUIESCE)]
    assert slots.quiesced(4, 1, 2.0) == []
    assert slots.resume(2.0) == slots.park(1, 2.0) == slots.tick(9.0) == []

    assert slots.serve(10.0) == [Send(link, Kind.WINDOW) for link in (A, B, C, 4)]
    assert slots.idle_ms(10.5) == 500
    assert slots.open(A, 2, 11.0) == [Connect(Key(A, 2))]
    assert slots.serve(12.0) == []


def test_a_park_is_refused_while_in_use() -> None:
    """Also one with the least time of idleness, and by an exchange that crosses it."""
    slots = table()
    opened(slots, A, 1)
    assert slots.park(1, 1.0) == [NotIdle(0)]
    slots.end(A, 1, 2.0)
    assert slots.park(500, 2.25) == [NotIdle(250)]

    assert slots.park(200, 2.25) == QUIESCES
    assert slots.open(A, 2, 2.5) == [*RESUMED, NotIdle(0), Connect(Key(A, 2))]
    assert slots.end(A, 2, 2.5) == [Shut(Key(A, 2))]
    assert slots.park(200, 3.0) == QUIESCES
    assert slots.resume(3.0) == [*RESUMED, NotIdle(500)]


def test_a_park_may_wait_for_what_is_open() -> None:
    """With 0 open exchanges end before; RESUME revokes it until then, and a drain replaces it."""
    slots = table()
    opened(slots, A, 1)
    assert slots.park(0, 1.0) == QUIESCES
    assert slots.open(B, 7, 1.0) == [Send(B, Kind.NOT_STARTED, 7, NotStarted.DRAINING)]
    for link in (A, B, C):
        assert slots.quiesced(link, 1, 1.0) == []
    assert slots.resume(2.0) == [*RESUMED, NotIdle(0)]
    assert slots.park(0, 2.0) == QUIESCES
    for link in (A, B, C):
        assert slots.quiesced(link, 0, 2.0) == []
    assert slots.park(0, 3.0) == []

    assert slots.end(A, 1, 3.0) == [Shut(Key(A, 1)), Parked()]

    assert slots.phase is Phase.PARKED
    assert slots.resume(4.0) == []


def test_what_takes_no_slot_is_shut_by_a_park() -> None:
    """As by a stop. The gateway of one that is being connected waits for an answer."""
    slots = table()
    for id in (1, 2):
        slots.open(A, id, 0.0, is_free=True)
    slots.connected(Key(A, 1), 0.0)
    opened(slots, B, 3)
    slots.tunnel(B, 3, 0.0, is_quiet=True)
    assert slots.park(1, 1.0) == QUIESCES
    for link in (A, B):
        slots.quiesced(link, 0, 1.0)

    assert slots.quiesced(C, 0, 1.0) == [
        Send(A, Kind.NOT_STARTED, 2, NotStarted.DRAINING),
        *(Shut(Key(*key)) for key in ((A, 1), (A, 2), (B, 3))),
        Parked(),
    ]
    assert slots.end(A, 1, 2.0) == slots.reuse(B, 4, 3, 2.0) == []


@pytest.mark.parametrize("if_idle_ms", [0, 500])
def test_a_parked_server_can_be_stopped(if_idle_ms: int) -> None:
    """Nothing is open, so that each drain is over at once. A drain is not loosened to a park."""
    slots = table()
    parked(slots)
    assert slots.drain(if_idle_ms, 2.0) == [Stop()]
    assert slots.serve(3.0) == []

    slots = table()
    slots.park(1, 1.0)
    slots.drain(0, 1.0)
    assert slots.park(1, 1.0) == []
    for link in (A, B):
        slots.quiesced(link, 0, 1.0)
    assert slots.quiesced(C, 0, 1.0) == [Stop()]


def test_a_gateway_that_does_not_answer_is_ended() -> None:
    """Its exchanges are shut with its link, and the drain goes on."""
    slots = table(1, A)
    opened(slots, A, 1)
    slots.drain(0, 1.0)

    assert slots.tick(1.0 + QUIESCE_S - 0.1) == []
    assert slots.tick(1.0 + QUIESCE_S) == [EndLink(A)]
    assert slots.link_lost(A, 4.0) == [Shut(Key(A, 1)), Stop()]


def test_a_link_that_joins_during_a_drain_is_asked_too() -> None:
    """It has the same time to answer, from then on."""
    slots = table(1, A)
    slots.drain(0, 1.0)

    assert slots.join(B, 3.0) == [Send(B, Kind.QUIESCE)]
    assert slots.tick(1.0 + QUIESCE_S) == [EndLink(A)]
    assert slots.tick(3.0 + QUIESCE_S) == [EndLink(A), EndLink(B)]


def test_an_answer_to_nothing_breaks_the_protocol() -> None:
    """QUIESCED follows QUIESCE."""
    with pytest.raises(LinkError, match="unexpected QUIESCED"):
        table().quiesced(A, 0, 0.0)


def test_a_quiet_websocket_is_no_use_and_takes_no_slot() -> None:
    """It does not refuse a drain, is never too old, and is shut before the server is stopped."""
    slots = table(1, A)
    opened(slots, A, 1)
    assert slots.tunnel(A, 1, 5.0, is_quiet=False) == []
    assert (slots.in_use, slots.taken, slots.idle_ms(9.0)) == (1, 1, 0)

    assert slots.tunnel(A, 1, 10.0, is_quiet=True) == []
    assert (slots.in_use, slots.taken, slots.idle_ms(12.0)) == (0, 0, 2000)
    assert slots.busy_ms(20.0) == 10_000
    assert slots.tick(MAX_S * 100) == []

    assert slots.drain(1000, 4000.0) == [Send(A, Kind.QUIESCE)]
    assert slots.quiesced(A, 0, 4000.0) == [Shut(Key(A, 1)), Stop()]
    assert slots.end(A, 1, 4001.0) == []


def test_a_websocket_that_is_used_again_refuses_a_drain() -> None:
    """Its frame may cross the question; an unconditional drain waits for it."""
    slots = table(1, A)
    opened(slots, A, 1)
    slots.tunnel(A, 1, 0.0, is_quiet=True)
    opened(slots, A, 2)
    slots.end(A, 2, 1.0)
    slots.drain(1, 2.0)

    assert slots.tunnel(A, 1, 3.0, is_quiet=False) == [Send(A, Kind.WINDOW), NotIdle(0)]
    assert (slots.in_use, slots.taken) == (1, 1)

    slots.drain(0, 4.0)
    assert slots.quiesced(A, 0, 4.0) == []
    assert slots.quiesced(A, 1, 4.0) == []
    assert slots.end(A, 1, 5.0) == [Shut(Key(A, 1)), Stop()]


def test_a_quiet_websocket_gives_its_slot_to_who_waits() -> None:
    """And takes one even above the limit when it is used again."""
    slots = table(1, A, B)
    opened(slots, A, 1)
    assert full(B, 1) in slots.open(B, 1, 1.0)

    assert offer(B) in slots.tunnel(A, 1, 2.0, is_quiet=True)
    assert Connect(Key(B, 2)) in slots.open(B, 2, 2.0)
    slots.tunnel(A, 1, 3.0, is_quiet=False)
    assert slots.taken == 2
    assert full(B, 3) in slots.open(B, 3, 4.0)


def test_a_tunnel_of_an_idle_connection_breaks_the_protocol() -> None:
    """An unknown one was shut meanwhile."""
    slots = table(1, A)
    opened(slots, A, 1)
    slots.end(A, 1, 1.0, is_kept=True)

    with pytest.raises(LinkError, match="idle"):
        slots.tunnel(A, 1, 2.0, is_quiet=True)
    assert slots.tunnel(A, 9, 2.0, is_quiet=True) == []
