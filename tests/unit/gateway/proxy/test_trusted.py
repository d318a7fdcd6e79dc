"""Trusted proxies by their addresses."""

from __future__ import annotations

import pytest

from gateway.proxy import trusted
from gateway.proxy.trusted import TrustedProxies, parse_network


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::1", "::1/128"),
        ("FD00::/8", "fd00::/8"),
    ],
)
def test_networks(text: str, network: str) -> None:
    """An address is a network of one."""
    assert str(parse_network(text)) == network


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "such as 10.0.0.0/8"),
        ("*", "such as 10.0.0.0/8"),
        ("proxy.example", "such as 10.0.0.0/8"),
        ("10.0.0.0/33", "such as 10.0.0.0/8"),
        ("10.0.0.0/255.0.0.0", "such as 10.0.0.0/8"),
        ("10.0.0.0/0.0.0.255", "such as 10.0.0.0/8"),
        ("fe80::1%eth0", "such as 10.0.0.0/8"),
        ("10.0.0.1 ", "such as 10.0.0.0/8"),
        ("10.1.2.3/8", "the network 10.0.0.0/8 or one address of it"),
        ("fd00::1/8", "the network fd00::/8 or one address of it"),
        ("::ffff:10.0.0.1", "an IPv4 address or network in its own form"),
        ("::ffff:0:0/96", "an IPv4 address or network in its own form"),
    ],
)
def test_what_is_no_network_is_refused(text: str, expected: str) -> None:
    """The text says what was expected."""
    with pytest.raises(ValueError, match=f"^expected {expected}|^expected .*{expected}$"):
        parse_network(text)


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        (b"10.255.0.1", True),
        (b"11.0.0.1", False),
        (b"192.0.2.7", True),
        (b"192.0.2.8", False),
        (b"::ffff:10.1.1.1", True),
        (b"::ffff:11.1.1.1", False),
        (b"fd00::1", True),
        (b"fe80::1%eth0", True),
        (b"::1", False),
        (b"", False),
        (b"\xff", False),
        (b"unknown", False),
    ],
)
def test_peers(peer: bytes, is_trusted: bool) -> None:
    """An IPv4 client of a socket for both versions is the same client; a peer without an address is
    never trusted."""
    proxies = TrustedProxies(("10.0.0.0/8", "192.0.2.7", "fd00::/8", "fe80::/10"))

    assert [proxies.has(peer) for _ in range(2)] == [is_trusted] * 2


def test_nobody_is_trusted_by_default() -> None:
    """Not even this machine."""
    assert not any(TrustedProxies().has(peer) for peer in (b"127.0.0.1", b"::1", b""))


def test_the_memory_of_verdicts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of clients may connect."""
    monkeypatch.setattr(trusted, "PEERS_MAX", 3)
    proxies = TrustedProxies(("10.0.0.0/30",))

    for _ in range(2):
        assert [proxies.has(b"10.0.0.%d" % last) for last in range(6)] == [True] * 4 + [False] * 2
        assert len(proxies._known) <= 3
