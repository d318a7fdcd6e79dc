from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from admin.cli.doctor import link
from hosts.checks import Check
from hosts.tls.authority import AUTHORITY_FILE, Authority
from runtime_image.contract.addresses import TLS, TlsAddress
from runtime_image.contract.enrolment import SERVER_NAME, replica_name

NOW_S = time.time()
DAY_S = 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder's `link`, with an authority."""
    Authority.open(tmp_path / "link", 1, lambda: NOW_S)
    return tmp_path / "link"


def levels(found: list[Check]) -> dict[str, str]:
    return {check.name: check.level for check in found}


@contextmanager
def listening(authority: Authority, name: str) -> Iterator[int]:
    """A TLS server with a certificate of `authority` for `name`; its port."""
    issued = authority.issue(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = Path(f"{name}.pem")
    path.write_text(issued.certificate + issued.key)
    context.load_cert_chain(path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock, suppress(OSError), context.wrap_socket(sock, server_side=True) as on:
                        on.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_closed_door_has_no_checks(folder: Path) -> None:
    """Without FN_LINK_LISTEN nothing is checked."""
    assert link.checks("", "", folder, NOW_S) == []


def test_a_door_that_can_open_passes(folder: Path) -> None:
    """A free port, an address of another machine and a fresh authority are fine."""
    found = link.checks("0.0.0.0:0", "192.0.2.5:7444", folder, NOW_S)

    assert levels(found) == {"link": "ok", "link address": "ok", "link authority": "ok"}


@pytest.mark.parametrize(
    ("address", "level"),
    [
        ("192.0.2.5:0", "fail"),
        ("127.0.0.1:7444", "warn"),
        ("[::1]:7444", "warn"),
        ("localhost:7444", "warn"),
        ("nowhere.invalid:7444", "warn"),
        ("[2001:db8::1]:7444", "ok"),
    ],
)
def test_an_address_must_be_one_that_others_can_dial(address: str, level: str) -> None:
    """A wildcard or port 0 fails, loopback and unknown names are a warning; both name the
    setting."""
    found = link.reachable(TlsAddress.parse(TLS + address), is_set=True)

    assert (found.level, "FN_LINK_ADDRESS" in found.todo) == (level, level != "ok")


def test_a_port_may_be_this_servers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port in use passes if the server of this data folder answers there, and fails with the
    reason if another authority, another name or no TLS does."""
    monkeypatch.chdir(tmp_path)
    own = Authority.open(folder, 1, lambda: NOW_S)
    other = Authority.open(tmp_path / "other", 1, lambda: NOW_S)
    found = []
    for authority, name in ((own, SERVER_NAME), (other, SERVER_NAME), (own, replica_name("a"))):
        with listening(authority, name) as port:
            found.append(link.port(TlsAddress("127.0.0.1", port), own.pem))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        found.append(link.port(TlsAddress("127.0.0.1", port), ""))

    assert [check.level for check in found] == ["ok", "fail", "fail", "fail"]
    assert "Hostname mismatch" in found[2].found
    assert "no authority" in found[3].found
    assert all("FN_LINK_LISTEN" in check.todo for check in found[1:])


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    """The system's reason is shown, with the remedy."""
    found = link.port(TlsAddress("192.0.2.5", 0), "")

    assert (found.level, "0.0.0.0:PORT" in found.todo) == ("fail", True)


def test_the_authority_is_private(folder: Path) -> None:
    """A folder or file that others can read fails, with both remedies: the mode, and another
    authority."""
    for path, mode, want in ((folder, 0o750, "0700"), (folder / AUTHORITY_FILE, 0o640, "0600")):
        before = path.stat().st_mode
        path.chmod(mode)
        found, pem = link.examine(folder, NOW_S)
        assert (found.level, pem) == ("fail", "")
        assert f"{mode:04o}, expected {want}" in found.found
        assert f"chmod {want[1:]}" in found.todo
        assert path.stat().st_mode & 0o777 == mode  # it changes nothing
        path.chmod(before)
    assert link.examine(folder, NOW_S)[0].level == "ok"


def test_no_authority_is_fine_before_the_first_start(tmp_path: Path) -> None:
    """The server makes it."""
    found, _ = link.examine(tmp_path / "link", NOW_S)

    assert (found.level, "creates it" in found.found) == ("ok", True)
    assert not (tmp_path / "link").exists()


def test_a_damaged_authority_fails(folder: Path, tmp_path: Path) -> None:
    """Bytes that are no authority, and a key of another certificate, fail with the remedy; no text
    shows the key."""
    path = folder / AUTHORITY_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert link.examine(folder, NOW_S)[0].level == "fail"

    Authority.open(tmp_path / "other", 1, lambda: NOW_S)
    other = (tmp_path / "other" / AUTHORITY_FILE).read_bytes()
    key, mark, _ = whole.partition(b"-----BEGIN CERTIFICATE")
    path.write_bytes(key + mark + other.partition(mark)[2])
    found, _ = link.examine(folder, NOW_S)
    assert found.level == "fail"
    assert found.todo
    assert whole.split(b"\n")[1].decode() not in repr(found)


@pytest.mark.parametrize(
    ("days", "level"), [(-1, "fail"), (0, "ok"), (3600, "warn"), (4000, "fail")]
)
def test_the_time_of_the_authority(folder: Path, days: float, level: str) -> None:
    """A clock before its beginning fails, as does one after its end; the last months warn."""
    found, _ = link.examine(folder, NOW_S + days * DAY_S)

    assert found.level == level
    assert bool(found.todo) == (level != "ok")
