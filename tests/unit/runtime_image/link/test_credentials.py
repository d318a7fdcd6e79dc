"""What a replica proves itself with."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from runtime_image.contract.addresses import TlsAddress
from runtime_image.link.credentials import Credentials
from runtime_image.link.frames import LinkError
from tests.support.small_authority import SmallAuthority

NAME = "aaaa0001.replica.fngate"


@pytest.fixture(scope="module")
def authority() -> SmallAuthority:
    return SmallAuthority()


def encrypted(key: str) -> str:
    """Return a key with a password."""
    private = serialization.load_pem_private_key(key.encode(), None)
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ).decode()


@pytest.mark.parametrize("pem", ["", "no certificate", "-----BEGIN CERTIFICATE-----\n"])
def test_an_authority_is_a_certificate(pem: str) -> None:
    """Anything else is refused with what was expected."""
    with pytest.raises(LinkError, match="expected certificates and their key as PEM"):
        Credentials(pem)


@pytest.mark.parametrize("case", ["empty", "other key", "encrypted", "no text"])
def test_an_identity_is_a_pair(authority: SmallAuthority, case: str) -> None:
    """A certificate without its key is refused, and what is there stays."""
    made = authority.credentials(NAME)
    before = made._server
    identity = authority.issue(NAME)
    identity["key"] = {
        "empty": "",
        "other key": authority.issue(NAME)["key"],
        "encrypted": encrypted(identity["key"]),
        "no text": "\udc80",
    }[case]

    with pytest.raises(LinkError, match="expected certificates and their key as PEM"):
        made.replace(identity)

    assert made._server is before


def test_a_key_never_touches_a_disk(authority: SmallAuthority, tmp_path: Path) -> None:
    """The key is handed to OpenSSL in memory, and the descriptor is closed."""
    before = set(os.listdir("/proc/self/fd"))
    made = Credentials(authority.pem)
    made.replace(authority.issue(NAME))

    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not list(tmp_path.iterdir())


def test_nobody_listens_without_a_certificate(authority: SmallAuthority) -> None:
    """Before it has enrolled, a replica accepts nothing."""
    one, other = socket.socketpair()
    with one, other, pytest.raises(LinkError, match="no certificate to listen with"):
        Credentials(authority.pem).server(one)


def test_a_dial_has_one_timeout(authority: SmallAuthority) -> None:
    """A server that connects and says nothing is given up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = TlsAddress(*listener.getsockname())
        with pytest.raises(TimeoutError):
            Credentials(authority.pem).dial(address, 0.05)


def test_a_dial_says_why_it_failed(authority: SmallAuthority) -> None:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = TlsAddress(*listener.getsockname())
    with pytest.raises(ConnectionRefusedError):
        Credentials(authority.pem).dial(address, 1.0)
