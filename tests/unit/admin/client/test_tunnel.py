from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from admin.client.client import Client
from admin.client.ssh import Login, NoToken
from admin.client.transport import Unreachable
from admin.client.tunnel import tunnel
from tests.support.admin_api import AdminApi, Canned
from tests.support.sshd import Sshd

pytestmark = pytest.mark.slow

BROKE = r"SSH connection to \S+ broke"


def test_many_exchanges_share_one_connection(api: AdminApi, far: Sshd, way: Login) -> None:
    """Each exchange has a channel of its own; the server sees one login."""
    api.on("GET", "/readyz", Canned({"status": "ok"}))

    with tunnel(way) as opened:
        client = Client(api.url, "k", dial=opened.dial)
        answers = [client.ready() for _ in range(5)]

    assert answers == [{"status": "ok"}] * 5
    assert api.requests[0].headers["Host"] == api.url.removeprefix("http://")
    assert far.log.read_text().count("Accepted publickey") == 1


def test_its_thread_ends_with_the_block(way: Login) -> None:
    """Neither thread nor connection outlives the block, however it ends."""
    during: list[str] = []

    def interrupted() -> None:
        with tunnel(way):
            during.extend(thread.name for thread in threading.enumerate())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert "ssh-tunnel" in during
    assert "ssh-tunnel" not in {thread.name for thread in threading.enumerate()}


def test_a_failed_login_leaves_no_thread(far: Sshd, way: Login) -> None:
    """Nothing runs on where nobody was let in."""
    with pytest.raises(Unreachable), tunnel(replace(way, identity=far.make_key("stranger"))):
        raise AssertionError("nobody is let in")

    assert "ssh-tunnel" not in {thread.name for thread in threading.enumerate()}


def test_nobody_on_the_port_is_told(way: Login) -> None:
    """The far machine is there, the gateway is not: the text says which port."""
    nobody = r"nobody listens on 127\.0\.0\.1:9 of"

    with pytest.raises(Unreachable, match=nobody) as error, tunnel(way) as opened:
        Client("http://127.0.0.1:9", dial=opened.dial).ready()

    assert "fnctl serve" in error.value.__notes__[0]


def test_a_server_that_dies_is_not_the_tunnel(api: AdminApi, way: Login) -> None:
    """An exchange that broke while SSH stands is told as the gateway's."""
    api.on("GET", "/readyz", Canned(is_cut=True))

    with pytest.raises(Unreachable, match="gives no answer"), tunnel(way) as opened:
        Client(api.url, dial=opened.dial).ready()


def test_sshd_killed_in_the_middle_is_told(api: AdminApi, far: Sshd, way: Login) -> None:
    """The exchange ends at once with the reason, and nothing hangs at the end."""
    api.on("GET", "/readyz", Canned({"status": "ok"}, before=far.stop))

    with pytest.raises(Unreachable, match=BROKE) as error, tunnel(way) as opened:
        Client(api.url, dial=opened.dial).ready()

    assert "may go on" in error.value.__notes__[0]


def test_a_silent_sshd_is_given_up(
    api: AdminApi, far: Sshd, way: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for an answer is told when the other side lives no more, and leaves."""
    monkeypatch.setattr("admin.client.ssh.ALIVE_S", 0.1)
    monkeypatch.setattr("admin.client.tunnel.GRACE_S", 0.1)
    api.on("GET", "/readyz", Canned({"status": "ok"}, before=far.freeze))

    with pytest.raises(Unreachable, match=BROKE), tunnel(way) as opened:
        Client(api.url, dial=opened.dial).ready()


def test_leaving_a_silent_sshd_takes_no_answer(
    far: Sshd, way: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A goodbye that nobody hears ends the thread all the same."""
    monkeypatch.setattr("admin.client.tunnel.GRACE_S", 0.1)

    with tunnel(way):
        far.freeze()

    assert "ssh-tunnel" not in {thread.name for thread in threading.enumerate()}


def test_no_new_channel_over_a_broken_connection(api: AdminApi, far: Sshd, way: Login) -> None:
    """The next exchange is told what happened to the connection."""

    def dial_after_the_end() -> None:
        with tunnel(way) as opened:
            far.stop()
            opened.dial("127.0.0.1", 9)

    with pytest.raises(Unreachable, match=BROKE):
        dial_after_the_end()


def test_the_token_comes_from_there(way: Login, tmp_path: Path) -> None:
    """It is read over the same connection; where it is not, the reason is one of its own."""
    (tmp_path / "admin.token").write_text("t0ken")

    with tunnel(way) as opened:
        assert opened.token(tmp_path) == "t0ken"
        with pytest.raises(NoToken):
            opened.token(tmp_path / "elsewhere")
