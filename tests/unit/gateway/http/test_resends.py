"""Requests whose connection is lost before the answer: what is sent again, and on which one."""

from __future__ import annotations

import json
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.model.functions import Limits
from runtime_image.contract.link import Flag, Kind
from tests.support.proxied import Gate, gate, until

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n\r\na"
GET = b"GET /fn/web/x HTTP/1.1\r\n" + HOST + b"\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("method", "retry", "sends"), [("POST", "always", 2), ("GET", "never", 1), ("GET", "auto", 2)]
)
async def test_the_functions_setting_decides_about_second_sends(
    tmp_path: Path, is_fast: bool, method: str, retry: Any, sends: int
) -> None:
    """`retry` of function.toml: always sends a POST twice, never sends a GET once."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\na")

    head = method.encode() + b" /fn/web/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\n"
    async with gate(tmp_path, serve, is_fast=is_fast, limits=Limits(retry=retry)) as one:
        answer = await one.ask(head + b"Connection: close\r\n\r\na")
        code = json.loads(answer.partition(b"\r\n\r\n")[2])["code"]
        assert (code, count) == ("upstream_failed", sends)
        await one.settled()


def closes_used_ones(served: list[int]) -> Any:
    """Return a server that closes a connection at its second request, as if it had been idle for
    too long; `served` gets the number of each connection that answered, and of each that closed
    as a negative number."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        number = count
        await reader.readuntil(b"\r\n\r\na")
        served.append(number)
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\na")
        served.append(-number)

    return serve


async def together(one: Gate, count: int = 2, request: bytes = POST) -> list[bytes]:
    """Return the answers to `count` requests at once: as many connections are idle afterwards."""
    wires = [await one.connect() for _ in range(count)]
    one.sidecar.holds = True
    for wire in wires:
        wire.send(request)
    await until(lambda: one.sidecar.requested() == count)
    one.sidecar.release()
    answers = [await wire.answer() for wire in wires]
    for wire in wires:
        wire.close()
    await one.settled()
    return [body for _, body in answers]


def sends(one: Gate) -> int:
    """Return how often the last request was sent, as the access log has it."""
    log = one.gateway.invoker.access_log
    assert log is not None
    log.flush()
    log.close()
    return one.events[-1].sends


async def test_the_second_try_has_a_fresh_connection(tmp_path: Path, is_fast: bool) -> None:
    """If all idle connections are closed as a request comes, it is lost on one of them only."""
    served: list[int] = []
    async with gate(tmp_path, closes_used_ones(served), is_fast=is_fast) as one:
        assert await together(one) == [b"ok", b"ok"]
        wire = await one.connect()
        wire.send(POST)
        assert (await wire.answer())[1] == b"ok"
        assert [number for number in served if number > 0] == [1, 2, 3]
        assert len([number for number in served if number < 0]) == 1
        wire.close()
        await one.settled()


async def test_the_second_try_does_not_use_up_the_idle_connections(
    tmp_path: Path, is_fast: bool
) -> None:
    """However many there are, one is lost, one makes room for the fresh one, and the request was
    sent twice."""
    served: list[int] = []
    count = 20
    async with gate(tmp_path, closes_used_ones(served), is_fast=is_fast) as one:
        assert await together(one, count) == [b"ok"] * count
        wire = await one.connect()
        wire.send(POST)
        assert (await wire.answer())[1] == b"ok"
        wire.close()
        await one.settled()
        assert max(served) == count + 1
        assert len([number for number in served if number < 0]) == 1
        ended = [
            frame
            for frame in one.sidecar.got
            if frame.kind is Kind.END and not frame.flags & Flag.KEPT
        ]
        assert len(ended) == 3  # with the one that asked whether the server listens
        assert sends(one) == 2


async def test_a_request_that_a_killed_server_may_have_run_is_not_resent(
    tmp_path: Path, is_fast: bool
) -> None:
    """A POST on a used connection that ends is no race if the server listens no more."""
    served: list[int] = []
    async with gate(tmp_path, closes_used_ones(served), is_fast=is_fast) as one:
        assert await together(one) == [b"ok", b"ok"]
        one.sidecar.listens = False
        wire = await one.connect()
        wire.send(POST)
        _, body = await wire.answer()
        assert json.loads(body)["code"] == "replica_died"
        assert sorted(served)[1:] == [1, 2]
        wire.close()
        await one.settled()


@pytest.mark.parametrize("tries", [1, 3, 4])
async def test_a_connection_that_ended_before_its_request_is_replaced(
    tmp_path: Path, is_fast: bool, tries: int
) -> None:
    """Nothing was sent, so any method is sent on another one, even if `retry` is never; a server
    that closes one after the other is told from one that is being killed."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\na")
        writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast, limits=Limits(retry="never")) as one:
        one.sidecar.holds = True
        wire = await one.connect()
        wire.send(POST)
        for number in range(1, tries + 1):
            await until(lambda wanted=number: one.sidecar.requested() == wanted)  # type: ignore[misc]
            [id] = one.sidecar.take_held()
            one.sidecar.grant_ended(id)
        one.sidecar.holds = False
        head, body = await wire.answer()
        if tries < 4:
            assert body == b"ok"
        else:
            assert head.startswith(b"HTTP/1.1 502 ")
            assert json.loads(body)["code"] == "upstream_failed"
        wire.close()
        await one.settled()
        assert one.sidecar.requested() == min(tries + 1, 4)


async def test_a_connection_that_ended_before_its_request_is_no_send(
    tmp_path: Path, is_fast: bool
) -> None:
    """A server that is being killed loses a GET and accepts its second connection: the GET has been
    sent once, and is sent again."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        await reader.readuntil(b"\r\n\r\n")
        if count == 1:
            one.sidecar.holds = True
        else:
            writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        wire = await one.connect()
        wire.send(GET)
        await until(lambda: one.sidecar.requested() == 3)  # with whether the server listens
        [id] = one.sidecar.take_held()
        one.sidecar.grant_ended(id)
        one.sidecar.holds = False
        assert (await wire.answer())[1] == b"ok"
        assert count == 2
        wire.close()
        await one.settled()
        assert sends(one) == 2


@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_ending_server_loses_a_get_only_once(
    tmp_path: Path, is_fast: bool, is_kept: bool
) -> None:
    """A server that is being killed accepts connections for a while. Before a GET is sent again
    after the loss of a new one, the sidecar is asked; the loss of a kept one is no send."""
    count = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal count
        count += 1
        number = count
        await reader.readuntil(b"\r\n\r\n")
        if number == 1 and is_kept:
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
        elif number == 2 + is_kept:
            writer.write(OK)

    async with gate(tmp_path, serve, is_fast=is_fast) as one:
        if is_kept:
            assert await together(one, 1, GET) == [b"ok"]
        wire = await one.connect()
        one.sidecar.listens = False
        wire.send(GET)
        assert (await wire.answer())[1] == b"ok"
        wire.close()
        await one.settled()
        assert (count, sends(one)) == (2 + is_kept, 2 + is_kept)


async def test_a_request_that_is_never_resent_has_its_own_connection(
    tmp_path: Path, is_fast: bool
) -> None:
    """So it cannot be lost on one that the server closes because it was idle. Connections that
    were idle when the setting changed are not used either."""
    served: list[int] = []
    async with gate(tmp_path, closes_used_ones(served), is_fast=is_fast) as one:
        assert await together(one) == [b"ok", b"ok"]
        catalog = one.gateway.invoker.catalog
        function = catalog.resolve("web").function
        catalog.put_function(replace(function, limits=replace(function.limits, retry="never")))
        for _ in range(3):
            wire = await one.connect()
            wire.send(POST)
            assert (await wire.answer())[1] == b"ok"
            wire.close()
        assert served == [1, 2, 3, 4, 5]
        await one.settled()
        balance = one.delivery.balance()
        assert dict(balance.ended) == {**dict.fromkeys(balance.ended, 0), "completed": 5}
