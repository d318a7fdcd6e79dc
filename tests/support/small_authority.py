"""A certificate authority for tests of links over TLS: it issues whatever it is asked for."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtime_image.contract.enrolment import EPOCH_SHIFT, SERVER_NAME, Certificate
from runtime_image.link.credentials import Credentials

DAY = timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class SmallAuthority:
    """One authority; `pem` is its certificate."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "small authority")])
        builder = self._builder(self._name, self._key, secrets.randbits(64), DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.pem = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(
        self,
        name: str,
        *,
        epoch: int = 1,
        life: timedelta = DAY,
        usages: tuple[x509.ObjectIdentifier, ...] = BOTH,
    ) -> Certificate:
        """Return a certificate of `name`, which began two days ago if its life is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([])
        serial = epoch << EPOCH_SHIFT | secrets.randbits(EPOCH_SHIFT - 1)
        builder = self._builder(subject, key, serial, life)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Certificate(
            certificate=_pem(builder.sign(self._key, hashes.SHA256())), key=private.decode()
        )

    def credentials(self, name: str = SERVER_NAME, *, epoch: int = 1) -> Credentials:
        """Return credentials with a certificate of `name`."""
        made = Credentials(self.pem)
        made.replace(self.issue(name, epoch=epoch))
        return made

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        serial: int,
        life: timedelta,
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .issuer_name(self._name)
            .subject_name(subject)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - 2 * DAY)
            .not_valid_after(now + life)
        )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
