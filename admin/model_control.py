"""Loading of models, for callers who wait until they are resident."""

from __future__ import annotations

from typing import Final

from admin.deploy.rollout import log_tail
from pool_manager.manager import Manager
from registry.catalog import Catalog, Deployed
from registry.errors import FunctionFailing, NoRoom

RETRY_S: Final = 5.0


async def warm_up(
    catalog: Catalog,
    manager: Manager,
    deployed: Deployed,
    seconds: float,
    *,
    is_parked: bool = False,
) -> None:
    """Return once a replica of a revision is ready; `is_parked`: it has one that sleeps.

    Raises FunctionFailing with the reason of a failed start, NoRoom after `seconds`, and Unknown if
    the revision was removed meanwhile.
    """
    revision = deployed.revision
    get_ready = manager.unpark if is_parked else manager.warm
    outcome, reason = await get_ready(revision.key, timeout_s=seconds)
    if outcome == "ready":
        return
    catalog.resolve(revision.ref, revision.namespace)  # raises if it was removed meanwhile
    if outcome == "no_room":
        raise _no_room(manager, deployed, seconds, reason)
    raise FunctionFailing(
        f"{revision.ref} does not become ready: {reason}",
        admin_detail={"log_tail": await log_tail(manager, deployed.function.name)},
    )


def _no_room(manager: Manager, deployed: Deployed, seconds: float, reason: str) -> NoRoom:
    """Return the error for a pool that is not ready yet; replicas on their way keep starting."""
    key, ref = deployed.revision.key, deployed.revision.ref
    starting = [one for one in manager.replicas() if one.pool == key and one.is_coming]
    text = f"{ref} found no room within {seconds:g} s: {reason}"
    if starting:
        text = f"{ref} is still {starting[0].state} after {seconds:g} s, and keeps starting"
    return NoRoom(text, retry_after_s=RETRY_S)
