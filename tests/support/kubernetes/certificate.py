"""The certificate of the API server."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.small_authority import authority


def context_of(folder: Path, addresses: Sequence[str]) -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a server at some addresses, and its authority's certificate."""
    signer = authority("kubernetes")
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    names = [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([*names, x509.DNSName("kubernetes.default.svc")]), False
        )
        .sign(signer.key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "api-server.pem"
    path.touch(mode=0o600)
    path.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, signer.pem
