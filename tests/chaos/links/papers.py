"""Certificates that must open nothing, and the genuine ones beside them."""

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

from runtime_image.contract.enrolment import (
    EPOCH_SHIFT,
    GATEWAY_NAME,
    SERVER_NAME,
    replica_name,
)

HOUR: Final = timedelta(hours=1)
VALID: Final = (-HOUR, 24 * HOUR)
EXPIRED: Final = (-48 * HOUR, -HOUR)
FUTURE: Final = (24 * HOUR, 48 * HOUR)
BOTH: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class Paper:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...] = ()
    """Certificates that are sent with it."""

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Paper:
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


def authority(name: str = "fngate") -> Paper:
    """Return an authority of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return Paper(_signed(subject, subject, key, key, (), VALID, is_authority=True), key)


def issued(
    signer: Paper,
    *names: str,
    valid: tuple[timedelta, timedelta] = VALID,
    usages: Sequence[x509.ObjectIdentifier] = BOTH,
    epoch: int = 1,
) -> Paper:
    """Return a certificate with DNS names that `signer` has signed; `valid` is relative to now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0] if names else "none")])
    issuer = signer.certificate.subject
    one = _signed(subject, issuer, key, signer.key, names, valid, usages=usages, epoch=epoch)
    return Paper(one, key)


def hostile(genuine: Paper, good: str, other: str, epoch: int) -> dict[str, Paper]:
    """Return papers by name that open neither door as replica `good`; "other" and "gateway" are
    genuine, but of somebody else."""
    wrong = authority()
    stranger = authority(genuine.certificate.subject.rfc4514_string().removeprefix("CN="))
    name = replica_name(good)
    signer = issued(genuine, replica_name(other), epoch=epoch)
    below = issued(signer, name, epoch=epoch)
    gateway_below = issued(signer, GATEWAY_NAME, epoch=epoch)
    alone = authority(name)
    return {
        "self-signed": alone,
        "wrong authority": issued(wrong, name, epoch=epoch),
        "authority of the same name": issued(stranger, name, epoch=epoch),
        "wrong authority, gateway": issued(stranger, GATEWAY_NAME, epoch=epoch),
        "wrong authority, server": issued(stranger, SERVER_NAME, epoch=epoch),
        "expired": issued(genuine, name, valid=EXPIRED, epoch=epoch),
        "not yet valid": issued(genuine, name, valid=FUTURE, epoch=epoch),
        "signed by a replica": Paper(below.certificate, below.key, (signer.certificate,)),
        "gateway signed by a replica": Paper(
            gateway_below.certificate, gateway_below.key, (signer.certificate,)
        ),
        "for servers only": issued(
            genuine, name, usages=[ExtendedKeyUsageOID.SERVER_AUTH], epoch=epoch
        ),
        "without a name": issued(genuine, epoch=epoch),
        "name in the common name only": _common_name_only(genuine, name),
        "gone replica": issued(genuine, replica_name("00000000"), epoch=epoch),
        "name with a path": issued(genuine, replica_name(f"../{good}"), epoch=epoch),
        "other": issued(genuine, replica_name(other), epoch=epoch),
        "gateway": issued(
            genuine, GATEWAY_NAME, usages=[ExtendedKeyUsageOID.CLIENT_AUTH], epoch=epoch
        ),
        "server": issued(genuine, SERVER_NAME, epoch=epoch),
    }


def _common_name_only(signer: Paper, name: str) -> Paper:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    one = _signed(subject, signer.certificate.subject, key, signer.key, (), VALID, usages=BOTH)
    return Paper(one, key)


def _signed(
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
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        maker = maker.add_extension(alternative, critical=False)
    if usages:
        maker = maker.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return maker.sign(signing, hashes.SHA256())
