"""The files of a service account: read again when they are replaced, and never trusted blindly."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.kubernetes.access import AUTHORITY_MAX, TOKEN_MAX, Access
from hosts.kubernetes.errors import ApiAway
from tests.support.small_authority import authority


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a service account."""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text(authority().pem)
    (tmp_path / "namespace").write_text("team-a\n")
    return tmp_path


def replace(folder: Path, name: str, text: str) -> None:
    """Replace a file as the kubelet does: another file takes its name."""
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / name)


def test_addresses_of_both_families_are_urls(folder: Path) -> None:
    """An IPv6 address stands in brackets."""
    assert Access(folder, "10.96.0.1", 443).base_url == "https://10.96.0.1:443"
    assert Access(folder, "fd00::1", 6443).base_url == "https://[fd00::1]:6443"


def test_a_replaced_token_is_read_again(folder: Path) -> None:
    """The token of each request is the file's, without the line end."""
    access = Access(folder, "api", 443)
    assert access.token() == access.token() == "first"

    replace(folder, "token", "later")

    assert access.token() == "later"


def test_a_replaced_authority_makes_a_new_context(folder: Path) -> None:
    """The context stays the same until the file is another one, and trusts nothing else."""
    access = Access(folder, "api", 443)
    before = access.context()
    assert access.context() is before

    replace(folder, "ca.crt", authority("other").pem)

    after = access.context()
    assert after is not before
    assert [known["subject"] for known in after.get_ca_certs()] == [((("commonName", "other"),),)]
    assert after.check_hostname


def test_the_namespace_is_that_of_the_file(folder: Path) -> None:
    """It is a word without the line end."""
    assert Access(folder, "api", 443).namespace() == "team-a"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("token", ""),
        ("token", "two words"),
        ("token", "a\r\nHost: b"),
        ("token", "\u00e4"),
        ("token", "x" * (TOKEN_MAX + 1)),
        ("token", None),
        ("namespace", ""),
        ("namespace", "a/b"),
        ("namespace", ".."),
        ("namespace", "a" * 65),
        ("namespace", None),
        ("ca.crt", ""),
        ("ca.crt", "no certificate"),
        ("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("ca.crt", "#" * (AUTHORITY_MAX + 1)),
        ("ca.crt", None),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder: Path, name: str, text: str | None) -> None:
    """The error has the path: of a file that is missing, too long, or not what it should be."""
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text, encoding="utf-8")
    access = Access(folder, "api", 443)
    ask = {"token": access.token, "namespace": access.namespace, "ca.crt": access.context}[name]

    with pytest.raises(ApiAway, match=str(folder / name)):
        ask()


def test_no_secret_is_shown(folder: Path) -> None:
    """The token is not in the text of the object, which logs may have."""
    access = Access(folder, "api", 443)
    access.token()

    assert "first" not in repr(access)
