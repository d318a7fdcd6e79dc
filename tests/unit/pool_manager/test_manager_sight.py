"""What can be seen of a pool manager."""

from __future__ import annotations

from pathlib import Path

from pool_manager.core.pool import AT_REST
from pool_manager.reports import Decision
from tests.support.operator import operating

KEY = "default/digits@1"


async def test_of_an_unknown_pool_nothing_is_seen(tmp_path: Path) -> None:
    """No state, no outlook, nothing that stands in its way."""
    async with operating(tmp_path) as operator:
        manager = operator.manager

        assert manager.pool("default/nobody@1") is None
        assert manager.outlook("default/nobody@1") is AT_REST
        assert manager.blocked("default/nobody@1") == ""
        assert not manager.wakes_by_standby("default/nobody@1")
        assert manager.decisions("default/nobody@1") == []


async def test_decisions_are_told_as_they_are_made(tmp_path: Path) -> None:
    """The same ones that are kept."""
    told: list[tuple[str, Decision]] = []
    async with operating(tmp_path) as operator:
        await operator.deploy("digits")
        end = operator.manager.subscribe_decisions(lambda *one: told.append(one))
        await operator.manager.warm(KEY)
        end()
        operator.manager.note(KEY, "nobody listens")
        seen = operator.manager.outlook(KEY)

        assert [one for pool, one in told if pool == KEY] == operator.manager.decisions(KEY)[:-1]
        assert told != []
        assert seen.devices == tuple({one.device for one in operator.manager.replicas()})
