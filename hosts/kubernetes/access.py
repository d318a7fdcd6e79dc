"""Access to the API server of a cluster by the files of a service account, which the kubelet mounts
into each Pod that has one, and renews there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hosts.kubernetes.errors import ApiAway

TOKEN_MAX: Final = 16 * 1024
"""Max bytes of `token`."""
AUTHORITY_MAX: Final = 1024 * 1024
"""Max bytes of `ca.crt`: certificates in PEM."""
NAMESPACE_MAX: Final = 63
"""Max characters of `namespace`: it is a DNS label."""

Stamp = tuple[int, int, int]
"""What differs when a file has been replaced: time of its change in ns, inode, size."""


@dataclass(slots=True)
class Access:
    """Where the API server is, and how it is convinced. Not safe in several threads."""

    folder: Path
    """Folder with `token`, `ca.crt` and `namespace`."""
    host: str
    """Name or address of the API server, as in its certificate."""
    port: int
    _namespace: str = field(default="", init=False, repr=False)
    _token: tuple[Stamp, str] | None = field(default=None, init=False, repr=False)
    _context: tuple[Stamp, ssl.SSLContext] | None = field(default=None, init=False, repr=False)

    @property
    def base_url(self) -> str:
        """Return scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"

    def namespace(self) -> str:
        """Return the namespace of the account. Raises ApiAway if the file cannot be used."""
        if not self._namespace:
            name = self._read("namespace", NAMESPACE_MAX + 1)[0].strip()
            if not 0 < len(name) <= NAMESPACE_MAX or not name.replace("-", "").isalnum():
                raise ApiAway(f"{self.folder / 'namespace'}: expected the name of a namespace")
            self._namespace = name
        return self._namespace

    def token(self) -> str:
        """Return the token of now: the file is read again when it has been replaced, which the
        kubelet does long before the token expires. Raises ApiAway if it cannot be used."""
        stamp = self._stamp("token")
        if self._token is None or self._token[0] != stamp:
            text, stamp = self._read("token", TOKEN_MAX)
            token = text.strip()
            # A token is a part of a header field: nothing that could end the field.
            if not token or not all("!" <= sign <= "~" for sign in token):
                raise ApiAway(f"{self.folder / 'token'}: expected a token, one word in ASCII")
            self._token = stamp, token
        return self._token[1]

    def context(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the certificates in `ca.crt` and no others; a new one
        when the file has been replaced. Raises ApiAway if it cannot be used."""
        stamp = self._stamp("ca.crt")
        if self._context is None or self._context[0] != stamp:
            text, stamp = self._read("ca.crt", AUTHORITY_MAX)
            # Not create_default_context: from Python 3.13 on it demands extensions that the
            # authorities of many clusters lack (VERIFY_X509_STRICT).
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                context.load_verify_locations(cadata=text)
            except (ssl.SSLError, ValueError) as error:
                reason = f"{self.folder / 'ca.crt'}: expected certificates in PEM"
                raise ApiAway(reason) from error
            self._context = stamp, context
        return self._context[1]

    def _stamp(self, name: str) -> Stamp:
        try:
            found = (self.folder / name).stat()
        except OSError as error:
            raise self._unreadable(name, error) from error
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self, name: str, size_max: int) -> tuple[str, Stamp]:
        """Return the text of a file, and the stamp from before it was read: if it is replaced in
        between, it is read again at its next use."""
        stamp = self._stamp(name)
        try:
            with (self.folder / name).open("rb") as file:
                data = file.read(size_max + 1)
        except OSError as error:
            raise self._unreadable(name, error) from error
        if len(data) > size_max:
            raise ApiAway(f"{self.folder / name}: expected at most {size_max} bytes")
        try:
            return data.decode("ascii"), stamp
        except UnicodeDecodeError as error:
            raise ApiAway(f"{self.folder / name}: expected ASCII") from error

    def _unreadable(self, name: str, error: OSError) -> ApiAway:
        return ApiAway(f"{self.folder / name}: cannot be read: {error.strerror or error}")
