"""Hostile messages and callers of the gRPC server: limits hold, and the server lives."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.grpc.call_admission import STREAM_ROOMS, UNASKED, WATCHES
from gateway.grpc.messages import METHODS
from gateway.grpc.request import REQUEST
from tests.support import models
from tests.support.doses import amount
from tests.support.grpc_server import GrpcServerProcess, grpc_server, rows
from tests.support.http2_sender import PartialMessage, partial_message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 if amount(0, 1) == 0 else 3600)]

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
MESSAGES = amount(600, 100_000)
LOAD = "/inference.GRPCInferenceService/RepositoryModelLoad"
WATCH = "/grpc.health.v1.Health/Watch"
AT_ONCE = 32
ANSWER_S = 60.0
HELD_MIB = 16
GROWTH_MIB = 4 * HELD_MIB
MESSAGE_MAX = HELD_MIB * 2**20 // 4
HALVES = 12
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
"""Codes that would be the server's fault."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcServerProcess]:
    """A server with the function add and little memory for bodies."""
    folder = tmp_path_factory.mktemp("hostile")
    environment = {"FN_HELD_MIB": str(HELD_MIB)}
    with grpc_server(folder, environment=environment) as server:
        server.deploy(models.add_one(folder), "add")
        yield server
        assert not server.http.complaints


def resident_mib(server: GrpcServerProcess) -> float:
    """Return the resident memory of the server's process (proc(5))."""
    assert server.http.process is not None
    for line in Path(f"/proc/{server.http.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def seeds() -> list[bytes]:
    """Return valid messages in every form."""
    raw = REQUEST(model_name="add", id="i", raw_input_contents=[bytes(16)])
    raw.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    raw.outputs.add(name="y").parameters["classification"].int64_param = 2
    typed = REQUEST(model_name="add", model_version="1")
    typed.inputs.add(name="x", datatype="FP32", shape=[2, 4]).contents.fp32_contents.extend([1] * 8)
    typed.parameters["timeout"].int64_param = 1_000_000
    words = REQUEST(model_name="add")
    words.inputs.add(name="x", datatype="BYTES", shape=[2]).contents.bytes_contents.extend(
        [b"a", b""]
    )
    return [bytes(one.SerializeToString()) for one in (raw, typed, words)]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a message with a few changes: other bits, cuts, repetitions, and large numbers."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(5):
            case 0 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                made[at:at] = made[at : at + chance.randint(1, 40)] * chance.randint(1, 3)
            case _:
                made[at : at + 1] = b"\xff" * chance.randint(1, 9) + b"\x01"
    return bytes(made)


async def test_mutated_messages_are_never_the_servers_fault(server: GrpcServerProcess) -> None:
    """Each gets an answer or the client's error, on calls and on streams; memory stays bounded."""
    chance, found = random.Random(18), seeds()
    before = resident_mib(server)
    codes: Counter[grpc.StatusCode] = Counter()
    async with grpc.aio.insecure_channel(server.address) as channel:
        infer, stream = channel.unary_unary(INFER), channel.stream_stream(STREAM)
        for _ in range(MESSAGES // AT_ONCE):
            messages = [mutated(chance.choice(found), chance) for _ in range(AT_ONCE)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_code(infer, one)) for one in messages[AT_ONCE // 4 :]]
                streamed = group.create_task(_streamed(stream, messages[: AT_ONCE // 4]))
            codes.update(one.result() for one in tasks)
            assert streamed.result() == AT_ONCE // 4
        method = "/inference.GRPCInferenceService/"
        for name in METHODS.keys() - {"ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"}:
            for _ in range(amount(2, 200)):
                call = channel.unary_unary(method + name)
                codes[await _code(call, chance.randbytes(chance.randrange(20)))] += 1
    assert not [code for code in codes if code in OURS], codes
    assert codes[grpc.StatusCode.INVALID_ARGUMENT]
    assert resident_mib(server) < before + GROWTH_MIB
    with server.client() as client:
        assert client.infer("add", [rows(1)]).as_numpy("y")[0, 0] == 2


async def _code(call: Any, message: bytes) -> grpc.StatusCode:
    try:
        await call(message, timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _streamed(stream: Any, messages: list[bytes]) -> int:
    """Return the number of answers on one stream."""

    async def sent() -> Any:
        for one in messages:
            yield one

    return len([one async for one in stream(sent(), timeout=ANSWER_S)])


def test_a_message_beyond_the_limit_is_refused(server: GrpcServerProcess) -> None:
    """It is not held in memory; the next call on the connection succeeds."""
    before = resident_mib(server)
    with grpc.insecure_channel(server.address) as channel:
        infer = channel.unary_unary(INFER)
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with pytest.raises(grpc.RpcError) as caught:
                infer(bytes(HELD_MIB * 2**20), compression=compression, timeout=ANSWER_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as caught:
            infer(b"", timeout=ANSWER_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert resident_mib(server) < before + GROWTH_MIB


def test_a_message_of_many_empty_tensors_is_refused(server: GrpcServerProcess) -> None:
    """It would take many times its size once it is parsed."""
    before = resident_mib(server)
    with grpc.insecure_channel(server.address) as channel:
        infer = channel.unary_unary(INFER)
        for unit in (b"\x3a\x00", b"\x2a\x00", b"\x42\x00"):
            with pytest.raises(grpc.RpcError) as caught:
                infer(unit * 2**20, timeout=ANSWER_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, unit
    assert resident_mib(server) < before + GROWTH_MIB


def test_callers_without_a_key_are_refused_before_their_message(server: GrpcServerProcess) -> None:
    """A key's scopes hold for every call; a stranger learns of nothing but health."""
    key = server.http.fnctl_json("key", "add", "--scope", "invoke:other")
    secret, id = key["secret"], key["id"]
    try:
        with grpc.insecure_channel(server.address) as channel:
            for metadata, code in (
                ((), grpc.StatusCode.UNAUTHENTICATED),
                ((("authorization", "Bearer x"),), grpc.StatusCode.UNAUTHENTICATED),
                ((("authorization", f"Bearer {secret}"),), grpc.StatusCode.PERMISSION_DENIED),
            ):
                for call in (INFER, "/inference.GRPCInferenceService/ModelMetadata"):
                    message = b"\x0a\x03add"
                    with pytest.raises(grpc.RpcError) as caught:
                        channel.unary_unary(call)(message, metadata=metadata, timeout=ANSWER_S)
                    assert caught.value.code() is code, (call, metadata)
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert live(b"", timeout=ANSWER_S) == b"\x08\x01"
    finally:
        server.http.fnctl_json("key", "rm", id)


@contextmanager
def keys(server: GrpcServerProcess, *scopes: str) -> Iterator[list[str]]:
    """Add keys, one for each scope; return them."""
    made = [server.http.fnctl_json("key", "add", "--scope", one) for one in scopes]
    try:
        yield [one["secret"] for one in made]
    finally:
        for one in made:
            server.http.fnctl_json("key", "rm", one["id"])


@pytest.mark.parametrize("method", [LOAD, INFER, STREAM])
async def test_nothing_of_a_large_message_is_read_without_its_scope(
    server: GrpcServerProcess, method: str
) -> None:
    """A stranger and a key of another scope send no more than HTTP/2 lets them unasked."""
    with keys(server, "read") as (reader,):
        for token in ("", reader):
            length = MESSAGE_MAX - 10
            async with partial_message(server.port, method, token, length, length) as one:
                async with asyncio.timeout(ANSWER_S):
                    await one.is_ended.wait()
                assert one.sent <= UNASKED


async def test_a_large_message_that_is_no_inference_is_refused(server: GrpcServerProcess) -> None:
    """It is not parsed, and the error names both sizes."""
    metadata = tuple(server.admin.items())
    async with grpc.aio.insecure_channel(server.address) as channel:
        load = channel.unary_unary(LOAD)
        with pytest.raises(
            grpc.aio.AioRpcError, match="at most 65536 bytes, got 3000000"
        ) as caught:
            await load(b"\x1a\x00" * 1_500_000, metadata=metadata, timeout=ANSWER_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_halves_of_messages_have_room_and_are_ended_for_others(
    server: GrpcServerProcess,
) -> None:
    """Of all that are sent at once, a few begin; the call of another key ends a slow one."""
    with keys(server, "invoke", "invoke") as (slow, other):
        async with AsyncExitStack() as stack, asyncio.timeout(ANSWER_S):
            sent = [
                partial_message(server.port, INFER, slow, MESSAGE_MAX - 10, MESSAGE_MAX // 2)
                for _ in range(HALVES)
            ]
            halves = [await stack.enter_async_context(one) for one in sent]
            async with grpc.aio.insecure_channel(server.address) as channel:
                metadata = (("authorization", f"Bearer {other}"),)
                infer = channel.unary_unary(INFER)
                assert await infer(seeds()[0], metadata=metadata, timeout=ANSWER_S)
            assert any(one.is_ended.is_set() for one in halves)
            assert _held(halves) <= HELD_MIB * 2**20 + HALVES * UNASKED


def _held(halves: list[PartialMessage]) -> int:
    """Return the bytes of the messages that the server still reads."""
    return sum(one.sent for one in halves if not one.is_ended.is_set())


async def test_watches_of_strangers_keep_no_caller_out(server: GrpcServerProcess) -> None:
    """They have places of their own, of which one address gets half."""
    with keys(server, "invoke") as (key,):
        async with grpc.aio.insecure_channel(server.address) as channel:
            watches = [
                channel.unary_stream(WATCH)(b"", timeout=ANSWER_S) for _ in range(4 * WATCHES)
            ]
            found = await asyncio.gather(*(_first(one) for one in watches))
            assert found.count(grpc.StatusCode.OK) == WATCHES // 2
            assert set(found) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            metadata = (("authorization", f"Bearer {key}"),)
            assert await channel.unary_unary(INFER)(seeds()[0], metadata=metadata, timeout=ANSWER_S)
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"", timeout=ANSWER_S) == b"\x08\x01"
            for one in watches:
                one.cancel()


async def test_streams_of_one_key_leave_some_to_another(server: GrpcServerProcess) -> None:
    """A key may have as many as are free; the next one gets its share of the rest."""
    with keys(server, "invoke", "invoke") as secrets:
        async with grpc.aio.insecure_channel(server.address) as channel:
            open_stream = channel.stream_stream(STREAM)
            found, streams = [], []
            for secret in (*[secrets[0]] * 3, secrets[1]):
                call: Any = open_stream(
                    metadata=(("authorization", f"Bearer {secret}"),), timeout=ANSWER_S
                )
                streams.append(call)
                with suppress(grpc.aio.AioRpcError):  # it may be refused already
                    await call.write(seeds()[0])
                found.append(await _first(call))
            places = 4 // STREAM_ROOMS
            assert [one is grpc.StatusCode.OK for one in found] == [True, False, False, True]
            assert found.count(grpc.StatusCode.OK) == places
            for one in streams:
                one.cancel()


async def test_the_stream_of_a_revoked_key_is_cut(server: GrpcServerProcess) -> None:
    """It ends with UNAUTHENTICATED although its client is silent; that of another key goes on."""
    gone, stays = (server.http.fnctl_json("key", "add", "--scope", "invoke") for _ in range(2))
    async with grpc.aio.insecure_channel(server.address) as channel:
        calls: list[Any] = []
        for key in (gone, stays):
            metadata = (("authorization", f"Bearer {key['secret']}"),)
            call: Any = channel.stream_stream(STREAM)(metadata=metadata, timeout=ANSWER_S)
            await call.write(seeds()[0])
            assert await _first(call) is grpc.StatusCode.OK
            calls.append(call)
        await asyncio.to_thread(server.http.fnctl_json, "key", "rm", gone["id"])

        assert await _first(calls[0]) is grpc.StatusCode.UNAUTHENTICATED
        await calls[1].write(seeds()[0])
        assert await _first(calls[1]) is grpc.StatusCode.OK
        calls[1].cancel()
    server.http.fnctl_json("key", "rm", stays["id"])


async def _first(call: Any) -> grpc.StatusCode:
    """Return OK once a stream has a message, or the status with which it ended before."""
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
