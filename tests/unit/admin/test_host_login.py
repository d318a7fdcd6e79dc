"""Tests of logins to new hosts."""

from __future__ import annotations

from typing import Any

import asyncssh
import pytest

from admin.host_login import HostLogins, login_of
from hosts.checks import Check
from hosts.errors import Unreachable
from hosts.login import Login, login_failure
from registry.errors import BadRequest, HostRefused
from registry.model.hosts import Host, SshHost

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFfGcgGRVOoYdyv3h1CmT6HjCPWEX0dyCRYDIdpoyrpI"
GPU2 = SshHost("gpu2", address="nn@gpu2:2222", identity="/keys/id")
FINE = Check("ok", "docker", "24.0")
BAD = Check("fail", "forwarding", "refused", "AllowStreamLocalForwarding yes")


class There:
    """A machine that accepts a login if its key is known, and what its checks find."""

    def __init__(self, checks: list[Check], *, shows: str = "") -> None:
        self.checks = checks
        self.shows = shows
        self.logins: list[Login] = []

    async def log_in(self, login: Login) -> Any:
        self.logins.append(login)
        if self.shows and login.host_key != self.shows:
            error = Unreachable("the host key of gpu2 is not known")
            error.add_note("ssh gpu2")
            error.host_key = self.shows  # type: ignore[attr-defined] # set by hosts.login
            raise error
        return self

    async def close(self) -> None:
        """End the login."""

    async def examine(self, login: Login, engine: str) -> list[Check]:
        assert engine == "/var/run/docker.sock"
        await self.log_in(login)
        return self.checks

    def logins_to(self) -> HostLogins:
        return HostLogins(self.log_in, self.examine)


async def test_a_host_that_has_all_is_accepted() -> None:
    """The login is that of the host, and the results of all checks come back."""
    there = There([FINE])

    checked = await there.logins_to().check(GPU2)

    assert (checked.host, checked.checks) == (GPU2, [FINE])
    login = there.logins[0]
    assert (str(login.target), str(login.identity), login.host_key) == (
        "nn@gpu2:2222",
        "/keys/id",
        "",
    )


async def test_the_first_failed_check_refuses_the_host() -> None:
    """The error has the failed check, its remedy as the hint, and all results."""
    with pytest.raises(HostRefused, match="cannot run replicas: forwarding: refused") as caught:
        await There([FINE, BAD]).logins_to().check(GPU2)

    assert caught.value.detail == {
        "hint": "AllowStreamLocalForwarding yes",
        "checks": [FINE, BAD],
    }


async def test_an_unknown_key_is_named_and_pinned_only_on_request() -> None:
    """Without the request the error has the key; with it, the host has it, and it is used."""
    there = There([FINE], shows=KEY)

    with pytest.raises(HostRefused, match="is not known") as caught:
        await there.logins_to().check(GPU2)
    assert caught.value.detail == {"hint": "ssh gpu2", "host_key": KEY}

    checked = await there.logins_to().check(GPU2, accepts_key=True)
    assert checked.host.host_key == KEY
    assert there.logins[-1].host_key == KEY


async def test_a_changed_key_is_never_accepted() -> None:
    """A host with a pinned key is refused if it shows another one, whatever the request says."""
    pinned = SshHost("gpu2", address="gpu2", host_key=KEY)
    with pytest.raises(HostRefused):
        await There([FINE], shows=f"{KEY}=").logins_to().check(pinned, accepts_key=True)


async def test_an_examination_reports_a_failed_login() -> None:
    """Instead of an error there is one failed check with the remedy."""
    found = await There([FINE], shows=KEY).logins_to().examine(GPU2)

    assert found == [Check("fail", "login", "the host key of gpu2 is not known", "ssh gpu2")]


async def test_the_hint_names_the_option_of_hosts() -> None:
    """`--identity` of fnctl is for --ssh; that of a host has another name."""

    async def refuse(login: Login) -> Any:
        raise login_failure(login.target, asyncssh.PermissionDenied("no"))

    with pytest.raises(HostRefused) as caught:
        await HostLogins(refuse, There([FINE]).examine).check(GPU2)

    assert "--identity-file FILE" in str((caught.value.detail or {})["hint"])


@pytest.mark.parametrize(
    "host", [SshHost("a", address="-oProxyCommand=x"), SshHost("a", address="b", host_key="x y")]
)
def test_bad_addresses_and_keys_are_refused(host: Host) -> None:
    """An address that is an option of ssh, or a text that is no key, starts no login."""
    with pytest.raises(BadRequest):
        login_of(host)
