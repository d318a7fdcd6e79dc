"""WebSockets that are in use or quiet, by a clock of the test."""

from __future__ import annotations

from gateway.proxy.deadlines import Deadlines
from gateway.proxy.tunnel import Tunnel
from registry.model.functions import ExchangeLimits

PONG = b"\x8a\x80mask"
TEXT = b"\x81\x01x"


def test_pongs_keep_no_tunnel_in_use() -> None:
    """A tab that only answers pings for an hour is quiet after `idle_s`, and until data passes."""
    tunnel = Tunnel(300.0)
    tunnel.begin(0.0)
    quiet_at = []
    for second in range(3600):
        if second % 20 == 0:
            tunnel.from_client.feed(PONG)
            tunnel.from_server.feed(b"\x89\x00")
        assert tunnel.is_used_again is False
        if tunnel.check(float(second)):
            quiet_at.append(second)

    assert quiet_at == list(range(300, 3600))
    tunnel.from_server.feed(TEXT)
    assert tunnel.is_used_again is True
    assert tunnel.check(3600.0) is False
    assert tunnel.check(3900.0) is True


def test_data_of_either_direction_is_use() -> None:
    """Also a long frame that arrives in pieces, each a moment before `idle_s` is over."""
    for side in ("from_client", "from_server"):
        tunnel = Tunnel(10.0)
        tunnel.begin(0.0)
        follower = getattr(tunnel, side)
        follower.feed(b"\x82\x7f" + (1000).to_bytes(8))
        for step in range(100):
            follower.feed(b"x" * 10)
            assert tunnel.check(step * 9.0) is False
        assert follower.is_between is True


def test_data_is_not_cut_by_the_default_limit() -> None:
    """A WebSocket goes on beyond 600 s and a day; another request does not, nor one with a limit
    that was set."""
    for limits, is_cut in ((ExchangeLimits(), False), (ExchangeLimits(max_s=60), True)):
        clock = Deadlines(limits, 30.0)
        clock.sent(0.0)
        clock.begin_tunnel()
        ends = [clock.check(float(at), at, False, is_answered=True) for at in range(0, 90_000, 30)]
        assert any(ends) is is_cut
    plain = Deadlines(ExchangeLimits(), 30.0)
    plain.sent(0.0)
    assert plain.check(600.0, 1, False, is_answered=True) is not None
