"""Proxies in front of this server that are believed about where requests come from. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

PEERS_MAX: Final = 1024
"""Max addresses whose verdict is remembered. At the limit all are forgotten."""
# Neither zones, which networks ignore, nor masks, of which there are two kinds.
_FORM: Final = re.compile(r"[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?")


def parse_network(text: str) -> IPv4Network | IPv6Network:
    """Return the network that `text` names: an address, or a network such as 10.0.0.0/8.

    Raises ValueError; the text names what was expected.
    """
    try:
        network = ip_network(text if _FORM.fullmatch(text) else "")
    except ValueError:
        raise ValueError(_expected(text)) from None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("expected an IPv4 address or network in its own form, such as 10.0.0.0/8")
    return network


def _expected(text: str) -> str:
    """Return what is expected instead of a text that names no network."""
    try:
        network = ip_network(text if _FORM.fullmatch(text) else "", strict=False)
    except ValueError:
        return "expected an IP address or a network such as 10.0.0.0/8"
    return f"expected the network {network} or one address of it"


class TrustedProxies:
    """The trusted proxies of one gateway process, by the addresses of their connections."""

    __slots__ = ("_known", "_networks")

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(parse_network(text) for text in networks)
        self._known: dict[bytes, bool] = {}

    def has(self, peer: bytes) -> bool:
        """Return whether the client at the IP address `peer` is a trusted proxy."""
        if not self._networks:
            return False
        known = self._known.get(peer)
        if known is None:
            if len(self._known) >= PEERS_MAX:
                self._known.clear()
            known = self._known[peer] = self._contain(peer)
        return known

    def _contain(self, peer: bytes) -> bool:
        try:
            address = ip_address(peer.decode())
        except ValueError:  # no address, as of a Unix socket
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            # A socket that listens on both versions shows IPv4 clients so (RFC 4291, 2.5.5.2).
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)
