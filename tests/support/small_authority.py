"""A certificate authority for tests of links over TLS: it issues whatever it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtime_image.contract.enrolment import EPOCH_SHIFT, SERVER_NAME, Certificate
from runtime_image.link.credentials import Credentials

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
VALID: Final = (-HOUR, DAY)
BOTH: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class Identity:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...] = ()
    """Certificates that are sent with it."""

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Identity:
        """Return the one with these PEM texts."""
        private = serialization.load_pem_private_key(key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        return cls(x509.load_pem_x509_certificate(certificate), private)

    @property
    def pem(self) -> str:
        """Return the certificate with its chain."""
        whole = (self.certificate, *self.chain)
        return "".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in whole)

    @property
    def key_pem(self) -> str:
        """Return the key."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def write(self, folder: Path, name: str) -> None:
        """Write both to one file, as `ssl.SSLContext.load_cert_chain` takes them."""
        (folder / f"{name}.pem").write_text(self.pem + self.key_pem)


def authority(name: str = "fngate") -> Identity:
    """Return an authority of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return Identity(signed(subject, subject, key, key, (), VALID, is_authority=True), key)


def issued(
    signer: Identity,
    *names: str,
    valid: tuple[timedelta, timedelta] = VALID,
    usages: Sequence[x509.ObjectIdentifier] = BOTH,
    epoch: int = 1,
) -> Identity:
    """Return a certificate with DNS names that `signer` has signed; `valid` is relative to now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0] if names else "none")])
    issuer = signer.certificate.subject
    one = signed(subject, issuer, key, signer.key, names, valid, usages=usages, epoch=epoch)
    return Identity(one, key)


class SmallAuthority:
    """One authority; `pem` is its certificate."""

    def __init__(self) -> None:
        self._own = authority("small authority")
        self.pem = self._own.pem

    def issue(
        self,
        name: str,
        *,
        epoch: int = 1,
        life: timedelta = DAY,
        usages: Sequence[x509.ObjectIdentifier] = BOTH,
    ) -> Certificate:
        """Return a certificate of `name`, which began two days ago."""
        one = issued(self._own, name, valid=(-2 * DAY, life), usages=usages, epoch=epoch)
        return Certificate(certificate=one.pem, key=one.key_pem)

    def credentials(self, name: str = SERVER_NAME, *, epoch: int = 1) -> Credentials:
        """Return credentials with a certificate of `name`."""
        made = Credentials(self.pem)
        made.replace(self.issue(name, epoch=epoch))
        return made


def signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    valid: tuple[timedelta, timedelta],
    *,
    usages: Sequence[x509.ObjectIdentifier] = (),
    epoch: int = 1,
    is_authority: bool = False,
) -> x509.Certificate:
    """Return a certificate with these contents; `valid` is relative to now."""
    now = datetime.now(UTC)
    serial = (epoch << EPOCH_SHIFT) | (x509.random_serial_number() >> (160 - EPOCH_SHIFT))
    maker = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
        .add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True
        )
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        maker = maker.add_extension(alternative, critical=False)
    if usages:
        maker = maker.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return maker.sign(signing, hashes.SHA256())
