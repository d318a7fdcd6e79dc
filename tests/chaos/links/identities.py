"""Certificates that must open nothing, and the genuine ones beside them."""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtime_image.contract.enrolment import GATEWAY_NAME, SERVER_NAME, replica_name
from tests.support.small_authority import (
    BOTH,
    HOUR,
    VALID,
    Identity,
    authority,
    issued,
    signed,
)

EXPIRED: Final = (-48 * HOUR, -HOUR)
FUTURE: Final = (24 * HOUR, 48 * HOUR)


def hostile(genuine: Identity, good: str, other: str, epoch: int) -> dict[str, Identity]:
    """Return identities by name that open nothing as replica `good`; "other" and "gateway" are
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
        "signed by a replica": Identity(below.certificate, below.key, (signer.certificate,)),
        "gateway signed by a replica": Identity(
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


def _common_name_only(signer: Identity, name: str) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    one = signed(subject, signer.certificate.subject, key, signer.key, (), VALID, usages=BOTH)
    return Identity(one, key)
