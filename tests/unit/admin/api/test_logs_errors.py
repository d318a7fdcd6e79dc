from __future__ import annotations

from typing import Any, cast

from aiohttp.test_utils import make_mocked_request

from admin.api.logs import ErrorRoutes
from gateway.observing.errors import Failure, RecentFailures
from pool_manager.reports import Decision
from registry.catalog import Catalog
from tests.support.nouns import deployed


class Manager:
    """Has decided one thing about every pool."""

    def decisions(self, key: str) -> list[Decision]:
        """The same for each."""
        return [Decision(1.0, f"a1 ended: {key} was killed by SIGKILL")]


async def test_errors_are_told_with_their_cause_until_their_function_goes() -> None:
    """The newest first, and none of a function that had the name before."""
    catalog, recent = Catalog([deployed("digits", 3)]), RecentFailures()
    routes = ErrorRoutes(catalog, cast("Any", Manager()), recent)
    request = make_mocked_request("GET", "/", match_info={"name": "digits"})
    for at_s, code in ((1.0, "queue_full"), (2.0, "replica_died")):
        recent.add([Failure("default", "digits", "digits@3", code, at_s, "no", "a1", "q")])

    answer = await routes.errors(request)

    assert isinstance(answer.body, bytes)
    assert answer.body.index(b"replica_died") < answer.body.index(b"queue_full")
    assert b"no: a1 ended: default/digits@3 was killed by SIGKILL" in answer.body
    catalog.remove("digits")
    assert recent.of("default", "digits") == []
