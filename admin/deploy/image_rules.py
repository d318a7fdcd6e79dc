"""What an image of a server function may be, and the user ids that its server may have. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from pool_manager.image_names import PINNED, PULLED, Reference, is_listed, may_be_id
from registry.errors import DriverError, WrongScope
from registry.model.servers import ServerSettings

ADMIN: Final = "admin"
UID_MAX: Final = 2**31 - 1
"""Largest user id that container engines accept."""
FIRST_FREE: Final = 1000
"""User id that a refusal proposes, or the next one that is not reserved."""
UNKNOWN_USER: Final = "a user that is not known, as the engine lacks the image"
_OWN: Final = tuple(Reference(one, "").full_repository() for one in (PINNED, PULLED))
"""Repositories whose tags a pull must not move."""
_UID: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ReservedIds:
    """User ids that the server of an image has only by an admin's deploy.

    The kernel counts many limits per user id: a container with the id of this server could use up
    this server's. `own` are the ids of this process, `pool` the range of replicas' ids, which is
    that of other hosts' agents, too. `is_mapped`: the engine maps ids of containers to others of
    the machine (userns-remap).
    """

    own: frozenset[int] = frozenset()
    pool: range = range(0)
    is_mapped: bool = False

    def problem(self, user: str) -> str:
        """Return which reserved id a container may get whose user is `user`, as USER of an image or
        `server.user` names it; "" if it gets another one for certain.

        Engines also read `00` and `+0` as 0, and look up anything else in the image's passwd(5):
        only the plain form of a number is taken for that number.
        """
        name = user.partition(":")[0]
        if self.is_mapped and name in ("", "0"):
            return ""
        if not name:
            return "root (user id 0), as the image names no user"
        if not _UID.fullmatch(name) or int(name) > UID_MAX:
            return f"the user {name[:40]!r}, which may be any user id"
        uid = int(name)
        if uid == 0:
            return "root (user id 0)"
        if uid in self.own and not self.is_mapped:
            return f"user id {uid}, which is this server's own"
        if uid in self.pool:
            return f"user id {uid}, which is one of the replicas' (FN_REPLICA_UIDS)"
        return ""

    def free(self) -> int:
        """Return a user id that is not reserved."""
        return next(id for id in count(FIRST_FREE) if id not in self.own and id not in self.pool)


def user_of(server: ServerSettings) -> str | None:
    """Return the user of an image's server as the engine gets it, None if it is not known."""
    return server.user or (server.image.user if server.image else None)


def check_user(server: ServerSettings, ids: ReservedIds, scopes: Collection[str]) -> None:
    """Raise WrongScope if the server of a pinned image may have a reserved user id, which the
    scopes do not allow."""
    if ADMIN in scopes:
        return
    user = user_of(server)
    problem = UNKNOWN_USER if user is None else ids.problem(user)
    if problem:
        free = ids.free()
        raise WrongScope(
            f"server.user: expected a user id that no other program here has, got {problem}: as the"
            f" kernel counts limits per user id, this needs the scope admin, the key has"
            f' {", ".join(scopes)}; set user = "{free}:{free}" in [server]'
        )


class Source(NamedTuple):
    """Where a deploy gets its image: `reference` for the engine, the only `id` that it may have,
    "" for any, and whether it may be pulled."""

    reference: str
    id: str = ""
    may_pull: bool = True


@dataclass(frozen=True, slots=True)
class NamedImages:
    """Images that the scope deploy may name: repositories by `patterns`, and those that were made
    on this machine, `built`: their ids by their full names, "" for any image of that name."""

    patterns: tuple[str, ...] = ()
    built: Mapping[str, str] = field(default_factory=dict)

    def source(self, reference: str, scopes: Collection[str]) -> Source:
        """Return where a deploy with these scopes gets the image. Raises WrongScope, whatever the
        engine has.

        For the scope deploy the engine gets a full name, which it does not take for an id.
        """
        if ADMIN in scopes:
            return Source(reference)
        name = Reference.parse(reference)
        try:
            repository, full = name.full_repository(), name.full()
        except DriverError as error:
            raise WrongScope(f"server.image: {error.message}") from error
        if may_be_id(reference):
            raise self._refusal(f"{reference[:80]}, which may be the id of any image", scopes)
        if repository in _OWN:
            raise self._refusal(f"{repository}, whose tags are this server's own", scopes)
        is_any, built = is_listed(repository, self.patterns), self.built.get(full)
        # A pull would move the name by which replicas are started.
        if built == "" or (built and not is_any):
            return Source(full, built, may_pull=False)
        if is_any:
            return Source(full)
        raise self._refusal(repository, scopes)

    def _refusal(self, got: str, scopes: Collection[str]) -> WrongScope:
        listed = f"one of {', '.join(self.patterns)} (FN_IMAGES)"
        expected = listed if self.patterns else "an image of fnctl image build"
        return WrongScope(
            f"server.image: expected {expected}, got {got}: this needs the scope admin, the key has"
            f" {', '.join(scopes)}; or list the repository in FN_IMAGES, a setting of the server"
        )


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The rules of one server. `built` returns `NamedImages.built` as it is now, and blocks."""

    ids: ReservedIds = ReservedIds()
    patterns: tuple[str, ...] = ()
    built: Callable[[], Mapping[str, str]] = dict
