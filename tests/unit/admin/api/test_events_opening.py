"""A watch hears of everything."""

from __future__ import annotations

from admin.api.events import server_facts
from admin.settings import Settings
from tests.support.followed import following
from tests.support.operator import MODEL
from tests.support.server import ServingServer


def test_a_server_says_what_it_is() -> None:
    """What does not change while it runs."""
    facts = server_facts(Settings(workers=3))

    assert (facts["driver"], facts["workers"]) == ("process", 3)
    assert facts["version"]


async def test_steps_of_operations_are_told(server: ServingServer) -> None:
    """From the beginning to the end, with what came of it."""
    async with following(server) as told:
        await told.until("ready")
        await server.deploy({"m.onnx": MODEL}, name="other")
        done = await told.until("operation", lambda data: data["state"] == "done")
        line = await told.line("other", state="cold")

    steps = [one.data["phase"] for one in told.came if one.kind == "operation"]
    assert (steps[0], steps[-1]) == ("upload", "switch")
    assert done.data["result"]["revision"] == line["revision"] == "other@1"
