"""The HTTP side of one gateway process, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.access import Access
from gateway.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.http.admissions import Admissions
from gateway.http.door import Door
from gateway.http.invocation import Invoker
from gateway.observing.access_log import AccessLog
from gateway.observing.counting import Store
from gateway.observing.failures import FailureCount
from gateway.observing.metrics import Metrics
from gateway.ports import Past
from gateway.settings import GatewaySettings
from registry.catalog import Catalog


def assemble(  # noqa: PLR0913 - the parts of a gateway process
    settings: GatewaySettings,
    access: Access,
    catalog: Catalog,
    delivery: Delivery,
    past: Past,
    wall: Callable[[], float],
    events: AccessLog | None = None,
    store: Store | None = None,
) -> Invoker:
    """Whatever answers calls of functions. To be called in the loop. `wall` gives Unix seconds,
    `events` takes one for each request, `store` has what is counted."""
    loop = asyncio.get_running_loop()
    metrics = Metrics(
        delivery.loads,
        delivery.states,
        lambda: len(asyncio.all_tasks(loop)),
        lambda namespace, name: catalog.find(name, namespace) is not None,
        store,
    )
    catalog.subscribe(metrics.changed)
    return Invoker(
        settings,
        access,
        catalog,
        delivery,
        ColdCheck(),
        metrics,
        past,
        Door(),
        Admissions(access, catalog, settings.wait_max_s),
        wall,
        events,
        FailureCount(wall),
    )
