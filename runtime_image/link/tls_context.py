"""TLS contexts of links: the same for server, gateways and replicas."""

from __future__ import annotations

import os
import ssl
from typing import Any

from runtime_image.contract.enrolment import CURVE, Certificate


def tls_context(
    authority: str, identity: Certificate | None = None, *, is_server: bool = False
) -> ssl.SSLContext:
    """Return a context to dial with or, for a server, to accept with: TLS 1.3 alone, peers with a
    certificate of `authority` (PEM), and the certificate `identity` to show, None for none.

    Raises OSError (`ssl.SSLError` among them) or ValueError if they are not PEM, not of one key, or
    if the key is encrypted. The key is on no disk: `ssl` reads identities from files alone, here
    from one in memory (memfd_create(2)).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve(CURVE)
    context.verify_mode = ssl.CERT_REQUIRED
    context.hostname_checks_common_name = False
    # No resumed sessions: each handshake shows the certificates anew.
    context.options |= ssl.OP_NO_TICKET
    if is_server:
        context.num_tickets = 0
    context.load_verify_locations(cadata=authority)
    if identity is not None:
        with os.fdopen(os.memfd_create("identity", os.MFD_CLOEXEC), "wb") as file:
            file.write(f"{identity['certificate']}\n{identity['key']}\n".encode())
            file.flush()
            path = f"/proc/self/fd/{file.fileno()}"
            context.load_cert_chain(path, password=_no_password)
    return context


def name_of(certificate: dict[str, Any]) -> str:
    """Return the DNS name in a peer's certificate, as `getpeercert` gives one that was verified; ""
    for one without, or with anything beside it."""
    match certificate.get("subjectAltName"):
        case (("DNS", str(name)),):
            return name
        case _:
            return ""


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask for its password at the terminal."""
    raise ValueError("the key is encrypted")
