"""What the gateway does when a function's traffic moves to another of its revisions."""

from __future__ import annotations

from collections.abc import Callable

from gateway.delivery import Delivery
from gateway.dispatch.redirects import RerunPolicy
from registry.catalog import Catalog, Change, Deployed
from registry.compatibility import breaks


def follow_traffic(catalog: Catalog, delivery: Delivery) -> Callable[[], None]:
    """Have calls that wait move with their function's traffic; the returned function ends it."""

    def changed(change: Change) -> None:
        before, after = change.before, change.after
        if before is None or after is None or before.revision.key == after.revision.key:
            return
        delivery.move(before.revision.key, after.revision.key, rerun_policy(before, after))

    return catalog.subscribe(changed)


def rerun_policy(before: Deployed, after: Deployed) -> RerunPolicy | None:
    """How `after` runs calls meant for `before`; None where they may not fit it."""
    if breaks(before.revision, after.revision):
        return None
    return RerunPolicy(may_rerun(after), after.function.limits.timeout_s)


def may_rerun(deployed: Deployed) -> bool:
    """Whether a request that had started may be run again: a handler may have had effects."""
    retry = deployed.function.limits.retry
    return retry == "always" or (retry == "auto" and not deployed.revision.handler)
