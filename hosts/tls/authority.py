"""The authority of certificates for links over TLS: one of this data folder, kept in its `link`."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from registry.errors import StoreUnavailable
from registry.files import make_private, unavailable, write_atomic
from registry.settings import DAY_S
from runtime_image.contract.enrolment import EPOCH_SHIFT, GATEWAY_NAME, SERVER_NAME, Certificate
from runtime_image.link.tls_context import tls_context

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_FILE: Final = "authority.pem"
"""File of key and certificate of the authority: one file, so that they are replaced together."""
FILE_MAX: Final = 64 * 1024
"""Max bytes that are read of it."""
AUTHORITY_DAYS: Final = 3653
"""Ten years."""
LIFE_S: Final = 24 * 3600.0
"""Seconds for which any other certificate is valid."""
SKEW_S: Final = 300.0
"""Seconds by which the clock of a peer may be behind: certificates are valid from that long before
their issue. If it is further behind, the peer's handshake fails with OpenSSL's `certificate is not
yet valid`; if it is further ahead than what is left of the day, with `certificate has expired`."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key."""

    certificate: str
    """PEM."""
    key: str = field(repr=False)
    """PEM, not encrypted."""
    issued_s: float
    """When it was issued, in Unix seconds."""

    @property
    def identity(self) -> Certificate:
        """Both, as they are sent."""
        return Certificate(certificate=self.certificate, key=self.key)

    def is_due(self, now_s: float) -> bool:
        """Return whether it is to be replaced at `now_s`, Unix seconds."""
        return is_due(self.issued_s, now_s)


def is_due(issued_s: float, now_s: float) -> bool:
    """Return whether a certificate is to be replaced: half of its life is over, or the clock was
    ahead when it was issued, so that peers may find it not yet valid. Both are Unix seconds."""
    return not -SKEW_S <= now_s - issued_s < LIFE_S / 2


class Authority:
    """Issues certificates (P-256) for server, gateways and replicas. Its methods may be called in
    any thread; one takes about 0.2 ms."""

    def __init__(
        self,
        certificate: x509.Certificate,
        key: EllipticCurvePrivateKey,
        epoch: int,
        wall: Callable[[], float],
    ) -> None:
        self.pem = _certificate_pem(certificate)
        """The authority's certificate, which every peer is given."""
        self.epoch = epoch
        """That of every certificate which it issues."""
        self._certificate, self._key = certificate, key
        self._wall = wall

    @classmethod
    def open(cls, folder: Path, epoch: int, wall: Callable[[], float]) -> Authority:
        """Return the authority of `folder`, a new one if there is none. Blocking.

        `epoch` counts the openings of the store; `wall` returns Unix seconds. Raises
        StoreUnavailable, also for a file without a usable authority, which is never replaced.
        """
        path = folder / AUTHORITY_FILE
        try:
            make_private(folder)
            found = _read(path)
            if found is None:
                write_atomic(path, _make(wall()))
                found = _read(path) or b""
        except OSError as error:
            raise unavailable(error) from error
        try:
            return cls(*_parse(found, wall()), epoch, wall)
        except ValueError as error:
            raise StoreUnavailable(
                f"{path}: expected key and certificate of this server's authority for links over"
                f" TLS: {error}. Put back the file that was there, or move this one away: a new"
                " authority is then made at the next start, and replicas that have dialled in end"
            ) from error

    def issue(self, name: str) -> Issued:
        """Return a new certificate for `name` (`runtime_image.contract.enrolment`), valid for a
        day, with a key of its own."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        now_s = self._wall()
        key = ec.generate_private_key(ec.SECP256R1())
        serial = (self.epoch << EPOCH_SHIFT) | secrets.randbits(EPOCH_SHIFT)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if name != GATEWAY_NAME:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        built = (
            _builder(key, now_s, LIFE_S)
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .serial_number(serial)
            # Critical, as the subject is empty: RFC 5280, section 4.2.1.6.
            .add_extension(names, critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(_certificate_pem(built), _key_pem(key), now_s)


class Contexts:
    """TLS contexts of the door, each with a certificate that is replaced when it is due."""

    def __init__(self, authority: Authority, wall: Callable[[], float]) -> None:
        self._authority, self._wall = authority, wall
        self._server: tuple[Issued, ssl.SSLContext] | None = None
        self._gateway: tuple[Issued, ssl.SSLContext] | None = None

    def server(self) -> ssl.SSLContext:
        """Return the context to accept connections with, whose peers may have no certificate.
        Raises OSError without a free descriptor, as `gateway`."""
        if self._server is None or self._server[0].is_due(self._wall()):
            issued = self._authority.issue(SERVER_NAME)
            context = tls_context(self._authority.pem, issued.identity, is_server=True)
            context.verify_mode = ssl.CERT_OPTIONAL
            self._server = issued, context
        return self._server[1]

    def gateway(self) -> ssl.SSLContext:
        """Return the context to dial replicas with as a gateway does."""
        if self._gateway is None or self._gateway[0].is_due(self._wall()):
            issued = self._authority.issue(GATEWAY_NAME)
            self._gateway = issued, tls_context(self._authority.pem, issued.identity)
        return self._gateway[1]


def _read(path: Path) -> bytes | None:
    """Return the bytes of a file, None if there is none. Raises OSError."""
    try:
        # Not blocking: opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, FILE_MAX)
    finally:
        os.close(descriptor)


def _parse(found: bytes, now_s: float) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """Return certificate and key of an authority's file. Raises ValueError with what is wrong."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(found)
        key = load_pem_private_key(found, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("they cannot be read") from error
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == ec.SECP256R1.name):
        raise ValueError("the key is not of the curve P-256")
    if certificate.public_key() != key.public_key():
        raise ValueError("the certificate is not of this key")
    end_s = certificate.not_valid_after_utc.timestamp()
    if end_s <= now_s:
        raise ValueError(f"it has expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    return certificate, key


def _make(now_s: float) -> bytes:
    """Return the file of a new authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # A part of its own in the name: a peer that has both authorities can tell them apart.
    text = f"fngate links {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    built = (
        _builder(key, now_s, AUTHORITY_DAYS * DAY_S)
        .subject_name(name)
        .issuer_name(name)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return (_key_pem(key) + _certificate_pem(built)).encode()


def _builder(key: EllipticCurvePrivateKey, now_s: float, life_s: float) -> x509.CertificateBuilder:
    """Return the part that all certificates have: the key of the owner and the time."""
    from cryptography import x509

    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .public_key(public)
        .not_valid_before(datetime.fromtimestamp(now_s - SKEW_S, UTC))
        .not_valid_after(datetime.fromtimestamp(now_s + life_s, UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _certificate_pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
