"""Which folders of the host the containers of servers may mount."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.errors import BadRequest, DriverError
from registry.model.servers import Mount

KERNEL: Final = tuple(Path(path) for path in ("/proc", "/sys", "/dev"))


@dataclass(frozen=True, slots=True)
class MountRules:
    """Folders below which sources of mounts must lie, and paths that no source may reach.

    `guarded` are the data folder, the run folder, the engine's socket and the key of the secrets:
    with write access to one of them a container could act as the server.
    """

    roots: tuple[Path, ...] = ()
    guarded: tuple[Path, ...] = ()

    def check(self) -> None:
        """Raise BadRequest for a root that no server may use. Blocking."""
        for root in self.roots:
            if problem := self._root_problem(root):
                raise BadRequest(f"setting mount_roots: {problem}")

    def resolve(self, mount: Mount) -> str:
        """Return the canonical path of a mount's source. Blocking. Raises DriverError, naming the
        mount, unless it is a folder below one of the roots."""
        if not self.roots:
            nothing = "while FN_MOUNT_ROOTS is empty, so that nothing may be mounted"
            remedy = f"start the server with FN_MOUNT_ROOTS={mount.source}"
            raise _refusal(
                mount, "a folder below FN_MOUNT_ROOTS", f"{mount.source} {nothing}; {remedy}"
            )
        try:
            real = _real(Path(mount.source), strict=True)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _refusal(mount, "a folder", f"{mount.source}: {reason}") from error
        if not real.is_dir():
            raise _refusal(mount, "a folder", str(real))
        if not any(_is_within(real, _real(root)) for root in self.roots):
            roots = " or ".join(map(str, self.roots))
            raise _refusal(mount, f"a folder below {roots} (FN_MOUNT_ROOTS)", str(real))
        for root in self.roots:
            if problem := self._root_problem(root):
                raise _refusal(mount, "usable FN_MOUNT_ROOTS", problem)
        return os.fspath(real)

    def check_unchanged(self, mounts: Collection[Mount]) -> None:
        """Raise DriverError unless each source, canonical since its deploy, still is what it was
        then: no part of it may have become a link. Blocking."""
        for mount in mounts:
            real = self.resolve(mount)
            if real != mount.source:
                raise _refusal(mount, f"{mount.source} as deployed", f"a link to {real}")

    def _root_problem(self, root: Path) -> str:
        """Return why a folder must not be a root, "" if it may be one."""
        if not root.is_absolute():
            return f"expected absolute paths, got {root}"
        real = _real(root)
        for path in self.guarded:
            found = _real(path)
            if _is_within(found, real) or _is_within(real, found):
                return f"expected folders apart from {path}, got {root}"
        for path in KERNEL:
            if _is_within(real, path):
                return f"expected folders outside {path}, got {root}"
        return ""


def _real(path: Path, *, strict: bool = False) -> Path:
    """Return a canonical path. Path keeps two slashes at the beginning, which the kernel reads as
    one."""
    return Path("/", *path.resolve(strict=strict).parts[1:])


def _is_within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _refusal(mount: Mount, expected: str, got: str) -> DriverError:
    return DriverError(f"server.mounts.{mount.name}: expected {expected}, got {got}")
