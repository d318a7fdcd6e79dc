"""Enrolment, in this process, at a door of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.enrolment import ENROL_MAX, ENTRANCE_FILE
from runtime_image.contract.link import VERSION
from runtime_image.link.record import RecordRefused
from runtime_image.replica import entrance
from runtime_image.replica.entrance import Enrolment, enrol
from tests.support.scenes import a_record
from tests.support.small_authority import SmallAuthority
from tests.support.small_door import SmallDoor

GREETING = "ab" * 32
RECORD = replace(a_record(), greeting=GREETING)


@pytest.fixture
def door() -> Iterator[SmallDoor]:
    with closing(SmallDoor(RECORD)) as made:
        yield made


def write(run_dir: Path, door: SmallDoor, **changes: Any) -> None:
    """Write the entrance, with these fields changed; None removes one."""
    fields = {**door.entrance(), **changes}
    fields = {name: value for name, value in fields.items() if value is not None}
    (run_dir / ENTRANCE_FILE).write_text(json.dumps(fields))


def ended(enrolment: Enrolment) -> None:
    """Close what an enrolment opened."""
    enrolment.listener.close()
    enrolment.dialler.close()


def refusal(run_dir: Path) -> RecordRefused:
    """Return why an enrolment fails."""
    with pytest.raises(RecordRefused) as raised:
        enrol(run_dir / ENTRANCE_FILE)
    return raised.value


def test_a_replica_enrols(door: SmallDoor, tmp_path: Path) -> None:
    """It states its token, version and port, and gets its record; `start` is what it took."""
    write(tmp_path, door)

    made = enrol(tmp_path / ENTRANCE_FILE)

    assert door.asked == [{"version": VERSION, "token": "once", "port": made.listener.port}]
    assert made.record.id == RECORD.id
    assert 0 < made.record.phases["start"] < 30_000
    assert made.credentials.epoch == 1
    ended(made)


def test_a_token_may_be_in_a_file(door: SmallDoor, tmp_path: Path) -> None:
    """The file is read at the start, without the white space around the token."""
    (tmp_path / "token").write_text("once\n")
    write(tmp_path, door, token="", token_file=str(tmp_path / "token"))

    ended(enrol(tmp_path / ENTRANCE_FILE))

    assert door.asked[0]["token"] == "once"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"server": None}, "expected the fields authority, listen, server, token, token_file, got"),
        ({"more": ""}, "token_file, got authority, listen, more, server"),
        ({"server": 7}, "expected a string as server, got '7'"),
        ({"server": "10.0.0.1:7444"}, "server: expected tls://HOST:PORT, got '10.0.0.1:7444'"),
        ({"server": "tls://:7444"}, "server: expected a host and a port, got 'tls://:7444'"),
        ({"server": "tls://host:0"}, "server: expected a host and a port, got 'tls://host:0'"),
        ({"listen": "tls://x:66000"}, "listen: expected tls://HOST:PORT, got 'tls://x:66000'"),
        ({"listen": "tls://192.0.2.1:0"}, "cannot listen at tls://192.0.2.1:0: "),
        ({"token": ""}, "expected either a token or a token_file"),
        ({"token_file": "/x"}, "expected either a token or a token_file"),
        ({"token": "", "token_file": "/nowhere"}, "token_file: [Errno 2] No such file"),
        ({"token": "", "token_file": "/dev/null"}, "expected a token in /dev/null, got nothing"),
        ({"authority": "x"}, "authority: expected certificates and their key as PEM"),
    ],
)
def test_a_malformed_entrance_is_refused(
    door: SmallDoor, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """The error names the field, what was expected and what came; nobody is dialled."""
    write(tmp_path, door, **changes)

    error = refusal(tmp_path)

    assert f"malformed {ENTRANCE_FILE}: " in str(error)
    assert reason in str(error)
    assert error.exit_code == 65
    assert door.asked == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 10_000, "x" * (ENROL_MAX + 1), "\udc80"]
)
def test_an_entrance_is_a_small_object(tmp_path: Path, text: str) -> None:
    """Anything else in the file is refused."""
    (tmp_path / ENTRANCE_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))

    assert refusal(tmp_path).exit_code == 65


def test_a_refusal_is_passed_on(door: SmallDoor, tmp_path: Path) -> None:
    """The reason of the server is shown as one line."""
    door.refuse = "cannot dial 10.0.0.7:7443:\nfirewall?\x1b[31m"
    write(tmp_path, door)

    error = refusal(tmp_path)

    assert "the server refused the enrolment: cannot dial 10.0.0.7:7443: firewall? [31m" in str(
        error
    )
    assert error.exit_code == 77


def test_an_unknown_token_is_refused(door: SmallDoor, tmp_path: Path) -> None:
    """A replica with a wrong token learns it and ends."""
    write(tmp_path, door, token="twice")

    assert "an unknown token" in str(refusal(tmp_path))


def test_another_server_is_not_told_the_token(door: SmallDoor, tmp_path: Path) -> None:
    """Whoever listens at the address must be of the entrance's authority."""
    write(tmp_path, door, authority=SmallAuthority().pem)

    error = refusal(tmp_path)

    assert f"what listens at {door.address} is not the server of this entrance" in str(error)
    assert error.exit_code == 77
    assert door.asked == []


def test_a_door_that_is_shut_is_dialled_for_a_while(
    door: SmallDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica without a server ends with an exit code of its own."""
    monkeypatch.setattr(entrance, "DOOR_S", 0.05)
    monkeypatch.setattr(entrance, "RETRY_S", 0.01)
    door.shut()
    write(tmp_path, door)

    error = refusal(tmp_path)

    assert f"no server at {door.address} for 0.05 s: " in str(error)
    assert error.exit_code == 69


@pytest.mark.parametrize(
    ("changes", "reason", "code"),
    [
        ({"link": VERSION - 1}, "its manager 10: image and server are different releases", 76),
        ({"greeting": ""}, "expected a TLS address as data, and a greeting", 77),
        ({"threads": -1}, "expected a number of 0 or more as threads", 65),
    ],
)
def test_a_wrong_record_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str, code: int
) -> None:
    """The record of ENROLLED is checked as one in a file is."""
    with closing(SmallDoor(replace(RECORD, **changes))) as door:
        write(tmp_path, door)
        error = refusal(tmp_path)

    assert reason in str(error)
    assert error.exit_code == code
