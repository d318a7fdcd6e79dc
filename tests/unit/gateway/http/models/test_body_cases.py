"""The table of bodies at /v1, over both client sides: what the server gets, and what the client."""

from __future__ import annotations

import json
from pathlib import Path

from registry.model.servers import ModelApi
from tests.support.body_cases import SERVED, body_cases
from tests.support.modelled import CHAT, ModelServer, asks, dechunked, document, models, post


async def test_bodies_of_the_table(tmp_path: Path, is_fast: bool) -> None:
    """A server gets each body that passes as the table says, and none that is refused."""
    server = ModelServer(document(object="chat.completion", model=SERVED))
    api = ModelApi(served_model=SERVED, body_mib=32)
    async with models(tmp_path, server, is_fast=is_fast, api=api) as one:
        for case in body_cases():
            if case.model != "web":
                continue  # the only function here
            before = len(server.asked)
            answer = await asks(one, post(CHAT, case.body))
            asked = [got.body for got in server.asked[before:]]
            if case.refused:
                error = answer.json["error"]
                assert (answer.status, error["code"]) == (400, "bad_request"), case.name
                assert error["param"] == case.param, case.name
                assert case.refused in error["message"], case.name
                assert not asked, case.name
            else:
                assert answer.status == 200, case.name
                assert json.loads(dechunked(answer.body)[0])["model"] == "web", case.name
                assert asked == [case.edited], case.name
            server.asked.clear()
        await one.settled()
