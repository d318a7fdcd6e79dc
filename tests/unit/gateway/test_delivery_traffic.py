"""What happens to calls that wait when their function's traffic moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.delivery import follow_traffic, may_rerun, rerun_policy
from gateway.dispatch.redirects import RerunPolicy
from registry.catalog import Catalog, Deployed
from registry.exchange import Load
from registry.model import Limits
from runtime_image.contract.signature import Signature
from tests.support import nouns
from tests.support.peers import KEY, Client, ListeningManager, delivering

NEW = "default/digits@2"
OTHER = Signature("json", (), ())


def second(signature: Signature = nouns.SIGNATURE) -> Deployed:
    """digits@2, which has the traffic."""
    return Deployed(nouns.function(revision=2), nouns.revision(number=2, signature=signature))


async def test_who_waits_follows_and_the_manager_hears_of_both() -> None:
    """Demand leaves the old revision and comes to the new one in one message."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog([nouns.deployed()])
    async with delivering(manager) as delivery:
        follow_traffic(catalog, delivery)
        delivery.submit(client.call())
        await manager.heard()

        catalog.put(second())

        told = await manager.heard(NEW)
        assert told.revisions[KEY] == Load(0, 0, 0.0)
        assert told.revisions[NEW].queued == 1


async def test_who_does_not_fit_stays() -> None:
    """A revision with another signature gets none of the calls that were meant for the old one."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog([nouns.deployed()])
    async with delivering(manager) as delivery:
        follow_traffic(catalog, delivery)
        delivery.submit(client.call())

        catalog.put(second(OTHER))

        assert delivery.loads().keys() == {KEY}


async def test_other_changes_move_nobody() -> None:
    """Settings, a first deploy and a removal are no move; nor is anything after the end."""
    manager, client = ListeningManager(), Client()
    catalog = Catalog()
    async with delivering(manager) as delivery:
        end = follow_traffic(catalog, delivery)
        catalog.put(nouns.deployed())
        delivery.submit(client.call())
        catalog.put_function(nouns.function(labels={"team": "vision"}))
        catalog.put(replace(nouns.deployed(number=2), function=nouns.function()))
        assert delivery.loads().keys() == {KEY}

        end()
        catalog.put(second())
        catalog.remove("digits")

        assert delivery.loads().keys() == {KEY}


@pytest.mark.parametrize(
    ("retry", "handler", "may"),
    [
        ("auto", "", True),
        ("auto", "handler.py", False),
        ("always", "handler.py", True),
        ("never", "", False),
    ],
)
def test_calls_are_run_as_the_new_revision_says(retry: str, handler: str, may: bool) -> None:
    """Its handler, and the function's settings now, say whether and how long."""
    limits = Limits(timeout_s=3.0, retry=retry)  # type: ignore[arg-type]
    after = Deployed(
        nouns.function(revision=2, limits=limits), nouns.revision(number=2, handler=handler)
    )

    assert may_rerun(after) is may
    assert rerun_policy(nouns.deployed(), after) == RerunPolicy(may, 3.0)
