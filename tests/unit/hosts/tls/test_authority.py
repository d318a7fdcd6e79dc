"""Tests of the authority of certificates for links over TLS."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from hosts.tls.authority import AUTHORITY_DAYS, AUTHORITY_FILE, LIFE_S, SKEW_S, Authority
from registry.errors import StoreUnavailable
from registry.settings import DAY_S
from runtime_image.contract.enrolment import GATEWAY_NAME, SERVER_NAME, epoch_of, replica_name

NOW_S = 1_800_000_000.0


def opened(folder: Path, epoch: int = 1, now_s: float = NOW_S) -> Authority:
    """Return the authority of a folder at a time."""
    return Authority.open(folder / "link", epoch, lambda: now_s)


def test_it_is_made_once_and_private(tmp_path: Path) -> None:
    """The first start makes the authority, later ones find it; only this user can read it."""
    first = opened(tmp_path)
    file = tmp_path / "link" / AUTHORITY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.listdir(file.parent) == [AUTHORITY_FILE]

    made = file.read_bytes()
    assert opened(tmp_path, epoch=2).pem == first.pem
    assert file.read_bytes() == made


def test_a_folder_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    """A mode that was widened is mended before the key is read."""
    opened(tmp_path)
    (tmp_path / "link").chmod(0o755)
    opened(tmp_path)
    assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o700


def test_when_a_certificate_is_due(tmp_path: Path) -> None:
    """From half of its life on, and as soon as the clock says a time at which peers would find it
    not yet valid: it was issued by a wrong clock."""
    issued = opened(tmp_path).issue(SERVER_NAME)
    for later_s, is_due in (
        (0, False),
        (LIFE_S / 2 - 1, False),
        (LIFE_S / 2, True),
        (-SKEW_S, False),
        (-SKEW_S - 1, True),
    ):
        assert issued.is_due(NOW_S + later_s) is is_due
    assert issued.identity["key"] not in repr(issued)


def test_what_the_authority_is(tmp_path: Path) -> None:
    """It is of P-256, lives ten years, and may sign certificates but no further authority."""
    found = x509.load_pem_x509_certificate(opened(tmp_path).pem.encode())
    assert found.public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    usage = found.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature
    assert found.not_valid_after_utc.timestamp() == NOW_S + AUTHORITY_DAYS * DAY_S


@pytest.mark.parametrize(
    ("name", "usages"),
    [
        (SERVER_NAME, {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}),
        (GATEWAY_NAME, {ExtendedKeyUsageOID.CLIENT_AUTH}),
        (replica_name("r1"), {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}),
    ],
)
def test_what_a_certificate_says(tmp_path: Path, name: str, usages: set[object]) -> None:
    """A certificate has its owner's name alone, the epoch, its uses and a life of a day; nobody
    can issue others with it."""
    issued = opened(tmp_path, epoch=1042).issue(name)
    found = x509.load_pem_x509_certificate(issued.certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName(name)]
    assert epoch_of(found.serial_number) == 1042
    assert set(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.not_valid_before_utc == datetime.fromtimestamp(NOW_S - SKEW_S, UTC)
    assert found.not_valid_after_utc == datetime.fromtimestamp(NOW_S + LIFE_S, UTC)
    assert issued.issued_s == NOW_S


def test_each_certificate_is_another(tmp_path: Path) -> None:
    """Two certificates of one name differ in number and key."""
    authority = opened(tmp_path)
    first, second = authority.issue(SERVER_NAME), authority.issue(SERVER_NAME)
    assert first.key != second.key
    numbers = {
        x509.load_pem_x509_certificate(one.certificate.encode()).serial_number
        for one in (first, second)
    }
    assert len(numbers) == 2


def halves(folder: Path) -> tuple[bytes, bytes]:
    """Return key and certificate of the authority that a folder gets."""
    opened(folder)
    key, mark, certificate = (
        (folder / "link" / AUTHORITY_FILE).read_bytes().partition(b"-----BEGIN CERTIFICATE")
    )
    return key, mark + certificate


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "they cannot be read"),
        (b"no PEM\n", "they cannot be read"),
        ("key", "they cannot be read"),
        ("certificate", "they cannot be read"),
        ("cut", "they cannot be read"),
        ("mixed", "the certificate is not of this key"),
    ],
)
def test_a_broken_file_is_an_error(tmp_path: Path, content: bytes | str, reason: str) -> None:
    """A file without a usable pair refuses the start with the way out, and stays as it is: a new
    authority would end all replicas, and nobody would know why."""
    (tmp_path / "other").mkdir()
    key, certificate = halves(tmp_path)
    data = {
        "key": key,
        "certificate": certificate,
        "cut": (key + certificate)[:-40],
        "mixed": halves(tmp_path / "other")[0] + certificate,
    }
    file = tmp_path / "link" / AUTHORITY_FILE
    broken = content if isinstance(content, bytes) else data[content]
    file.write_bytes(broken)
    with pytest.raises(StoreUnavailable) as caught:
        opened(tmp_path)
    assert caught.value.message == (
        f"{file}: expected key and certificate of this server's authority for links over TLS:"
        f" {reason}. Put back the file that was there, or move this one away: a new authority is"
        " then made at the next start, and replicas that have dialled in end"
    )
    assert file.read_bytes() == broken


def test_an_expired_authority_is_an_error(tmp_path: Path) -> None:
    """After ten years the start says so."""
    opened(tmp_path)
    with pytest.raises(StoreUnavailable, match="it has expired on 2037-01-15"):
        opened(tmp_path, now_s=NOW_S + AUTHORITY_DAYS * DAY_S + 1)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A folder in the place of the file is refused, and so is a file in the place of the folder."""
    (tmp_path / "link" / AUTHORITY_FILE).mkdir(parents=True)
    with pytest.raises(StoreUnavailable, match="Is a directory"):
        opened(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").write_text("a file")
    with pytest.raises(StoreUnavailable, match="File exists"):
        opened(tmp_path / "other")
