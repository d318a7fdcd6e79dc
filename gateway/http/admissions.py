"""What a request's head is allowed, remembered while nothing it depends on changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from gateway.access import Access
from gateway.dispatch.call import Priority
from gateway.http import preferences
from gateway.http.head import Head
from gateway.settings import MIB
from gateway.traffic import may_rerun
from registry.catalog import Catalog, Deployed
from runtime_image.link.meta import RequestMeta

HEAD_MAX: Final = 1024
"""Characters of a head that is remembered."""
KEPT_MAX: Final = 4096
"""Heads remembered; then all are forgotten, which costs each of them one more check."""


class Admission(NamedTuple):
    """How calls of one head are held and run. `applied` is what Preference-Applied says,
    `as_of` the catalog's version."""

    deployed: Deployed
    pool: str
    meta: RequestMeta
    wait_s: float
    applied: str
    timeout_s: float
    body_max: int
    queue_max: int
    priority: Priority
    may_rerun: bool
    is_pinned: bool
    as_of: int


class Admissions:
    """Remembered by a key by which whoever reads HTTP knows a head again. The head says who calls
    and what, so with the same keys and the same catalog the same head is allowed the same."""

    def __init__(
        self, access: Access, catalog: Catalog, wait_max_s: float, held_bytes_max: int
    ) -> None:
        """`held_bytes_max` bounds all bodies together, and so each of them."""
        self._access = access
        self._catalog = catalog
        self._wait_max_s = wait_max_s
        self._held_bytes_max = held_bytes_max
        self._known: dict[Hashable, Admission] = {}
        self._as_of = (-1, -1)

    def find(self, key: Hashable) -> Admission | None:
        """What this head was allowed, if that still holds."""
        self._keep_up()
        return self._known.get(key)

    def resolve(self, head: Head) -> Deployed:
        """What a head calls. Raises FnError where its sender may not, or there is no such thing."""
        access = self._access
        access.check_host(head.host)
        access.check_origin(head.origin, head.fetch_site, head.host)
        access.check(head.authorization, "invoke", head.name)
        return self._catalog.resolve(head.ref)

    def admit(self, key: Hashable, head: Head, deployed: Deployed) -> Admission:
        """Read the rest of a head. Raises BadRequest: what is refused is not remembered."""
        limits = deployed.function.limits
        wait_s, applied = preferences.wait_s(head.prefer, limits.wait_s, self._wait_max_s)
        admission = Admission(
            deployed,
            deployed.revision.key,
            head.meta(),
            wait_s,
            applied,
            limits.timeout_s,
            min(limits.body_mib * MIB, self._held_bytes_max),
            limits.queue,
            preferences.priority(head.priority),
            may_rerun(deployed),
            "@" in head.ref,
            self._catalog.version,
        )
        self._keep_up()
        if len(self._known) >= KEPT_MAX:
            self._known.clear()
        # Long heads would fill the memory.
        if sum([len(one) for one in head if one]) <= HEAD_MAX:
            self._known[key] = admission
        return admission

    def _keep_up(self) -> None:
        as_of = (self._catalog.version, self._access.version)
        if self._as_of != as_of:
            self._as_of = as_of
            self._known.clear()
