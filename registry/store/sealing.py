"""The key that secrets are sealed with, in a file beside the database but in none of its copies.

Sealing protects copies of the database, such as backups. It does not protect the host: whoever can
read the data folder of a running server can read its secrets.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.errors import StoreUnavailable
from registry.files import fsync_folder, unavailable
from registry.settings import StoreSettings

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""Bytes of a random nonce of AES-GCM (NIST SP 800-38D, section 8.2.2)."""
_HEX: Final = re.compile(rb"[0-9a-f]{64}\s*")
_FILE_MAX: Final = 4096
_ID_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A key of 256 random bits. `id` tells keys apart and reveals nothing about them."""

    secret: bytes

    def __repr__(self) -> str:
        return f"SealingKey({self.id})"

    @property
    def id(self) -> str:
        """Return the first characters of a hash of the key."""
        return hashlib.sha256(b"fngate sealing key\0" + self.secret).hexdigest()[:_ID_CHARS]

    def seal(self, value: bytes, about: str) -> bytes:
        """Return nonce, ciphertext and tag of `value`, bound to the text `about`."""
        # Imported here, as most processes seal nothing.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, value, about.encode())

    def unseal(self, sealed: bytes, about: str) -> bytes | None:
        """Return the value that was sealed with this key for `about`; None for any other bytes."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return AESGCM(self.secret).decrypt(nonce, rest, about.encode())
        except (InvalidTag, ValueError):
            return None


class KeyFile:
    """The file of the key: 64 hex digits. `is_own`: it is created when it is needed and missing.

    It is read anew for every use, so that a key that was put back counts at once.
    """

    def __init__(self, path: Path, *, is_own: bool) -> None:
        self.path = path
        self._is_own = is_own

    @classmethod
    def of(cls, settings: StoreSettings) -> KeyFile:
        """Return the file of a store's key, which the server creates unless a setting names it."""
        return cls(settings.secret_key, is_own=settings.secret_key_file is None)

    def read(self) -> SealingKey | None:
        """Return the key, None without a file. Blocking. Raises StoreUnavailable for a file that
        has no key."""
        try:
            # Not blocking: opening a FIFO would wait for a writer.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = os.read(descriptor, _FILE_MAX)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unavailable(error) from error
        if not _HEX.fullmatch(found):
            raise StoreUnavailable(f"{self.path}: expected a key of 64 hex digits, got other bytes")
        return SealingKey(bytes.fromhex(found.decode().strip()))

    def read_or_create(self) -> SealingKey:
        """Return the key, a new one if there is none and the file is the server's own. Blocking.
        Raises StoreUnavailable."""
        key = self.read()
        if key is not None:
            return key
        if not self._is_own:
            raise StoreUnavailable(
                f"{self.path} does not exist: FN_SECRET_KEY_FILE names a file with a key of 64 hex"
                " digits (openssl rand -hex 32), which fngate does not create"
            )
        self._create()
        key = self.read()
        if key is None:
            raise StoreUnavailable(f"{self.path} was removed while it was created")
        return key

    def _create(self) -> None:
        """Create the file, complete and durable before it has its name. An existing file stays."""
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self.path)
            fsync_folder(self.path.parent)
        except OSError as error:
            raise unavailable(error) from error
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
