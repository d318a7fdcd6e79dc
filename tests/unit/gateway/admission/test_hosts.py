"""Tests of the names of a server, and of the functions' own hosts."""

from __future__ import annotations

import pytest

from gateway.admission.hosts import HostNames
from registry.errors import ForeignHost


def names(*, listen: str = "127.0.0.1", public_hosts: tuple[str, ...] = ()) -> HostNames:
    """Return the names of a server."""
    return HostNames(listen, public_hosts)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"],
)
def test_every_spelling_of_loopback_is_accepted(host: str) -> None:
    """A loopback server accepts every spelling of loopback as host, with any port."""
    names().check(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.", "[::2]", "127.0.0.2:80"),
        *("::1", "[::1]evil", "[::1", "[::1]:", "localhost:1.evil.example", "localhost:"),
        *("localhost:1x", "localhost:80:80", "evil@localhost", "localhost/", "localhost\n"),
    ],
)
def test_another_host_is_foreign(host: str) -> None:
    """A host that is not the server's is refused; the refusal lists the accepted hosts."""
    with pytest.raises(ForeignHost, match=r"expected 127\.0\.0\.1 or ::1 or localhost, got "):
        names().check(host)


def test_a_public_host_is_known_beside_the_listening_address() -> None:
    """Public hosts match in any case; a server that listens publicly refuses localhost."""
    rules = names(listen="10.0.0.5", public_hosts=("GPU.example",))

    rules.check("gpu.example:8080")
    rules.check("10.0.0.5")
    with pytest.raises(ForeignHost):
        rules.check("localhost")


def test_strange_hosts_are_remembered_up_to_a_limit() -> None:
    """The cache of host verdicts is bounded, and the verdicts stay the same at its limit."""
    rules = names()

    for number in range(1200):
        with pytest.raises(ForeignHost):
            rules.check(f"h{number}.example")
    rules.check("localhost")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("web.localhost", "web"),
        ("WEB.LocalHost:8080", "web"),
        ("w-1.gpu.example:443", "w-1"),
        ("gpu.example", None),
        ("localhost:8080", None),
        ("taken.gpu.example", None),
        ("a.web.localhost", None),
        ("web.localhost.", None),
        ("web.localhost.gpu.example", None),
        ("web.127.0.0.1", None),
        ("web.10.0.0.5", None),
        ("1web.localhost", None),
        ("web-.localhost", None),
        ("w_b.localhost", None),
        (".localhost", None),
        ("web.", None),
        ("web.localhost:x", None),
        ("web.localhost:80:80", None),
        ("[web.localhost]", None),
        ("", None),
        (f"{'w' * 63}.localhost", "w" * 63),
        (f"{'w' * 64}.localhost", None),
    ],
)
def test_the_own_hosts_of_functions(host: str, name: str | None) -> None:
    """Exactly one label, a function's name, before localhost or a public host name."""
    rules = names(public_hosts=("GPU.example", "taken.gpu.example", "10.0.0.5", "[::5]"))

    assert rules.function_of(host) == name
    if name is not None:
        with pytest.raises(ForeignHost):
            rules.check(host)


def test_a_public_server_has_no_local_hosts() -> None:
    """Names below localhost belong to a loopback server."""
    rules = names(listen="0.0.0.0", public_hosts=("gpu.example",))

    assert rules.function_of("web.localhost") is None
    assert rules.function_of("web.gpu.example") == "web"


@pytest.mark.parametrize(
    ("listen", "public", "reached", "expected"),
    [
        ("127.0.0.1", (), "127.0.0.1:8080", "web.localhost:8080"),
        ("127.0.0.1", (), "[::1]", "web.localhost"),
        ("127.0.0.1", ("gpu.example",), "GPU.example:443", "web.gpu.example:443"),
        ("10.0.0.5", ("a.example", "b.example"), "b.example", "web.b.example"),
        ("10.0.0.5", ("a.example", "b.example"), "10.0.0.5:80", "web.a.example:80"),
        ("10.0.0.5", ("10.0.0.5",), "10.0.0.5:80", None),
    ],
)
def test_the_host_of_pages(
    listen: str, public: tuple[str, ...], reached: str, expected: str | None
) -> None:
    """It is below the name by which the client has reached the server, with the same port."""
    assert names(listen=listen, public_hosts=public).page_host("web", reached) == expected
