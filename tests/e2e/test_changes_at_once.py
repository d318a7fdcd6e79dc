"""What an operator changes holds for the next call on every connection, at a real server with one
and with four gateway processes: over random orders of changes of keys, openness and functions."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from gateway.grpc.messages import SERVICE, message
from tests.support.changing import (
    ALIASES,
    MODELS,
    PRIVATE,
    SERVERS,
    Operator,
    made_for,
    outcome,
)
from tests.support.doses import amount
from tests.support.freezing import frozen
from tests.support.grpc_server import GrpcServerProcess, grpc_server
from tests.support.worker_server import Line, gateway_pids, holder, lines, peers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ORDERS = amount(3, 30)
"""Random orders, for each number of gateway processes."""
STEPS = 14
ASKED = 6
"""Calls that are remembered, so that they are known to each process when a change comes."""
CHANNELS_MAX = 100
ANSWER_S = 60.0
BEHIND_S = 0.3
"""Seconds that a process is stopped: long for a change, short beside the 2 s that it waits."""
ROW = [1.0, 0.0, 0.0, 0.0]
STATUSES = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
}
_INFER, _INFERRED = message("ModelInferRequest"), message("ModelInferResponse")


@dataclass(frozen=True)
class Call:
    """A call of a function with a key, None without one; `secret` is no part of its text."""

    name: str
    secret: str | None = field(repr=False)
    alias: str = ""
    """Name that is asked for at /v1; "" for the function's own."""


def bearer(call: Call) -> dict[str, str]:
    """Return the fields with a call's key, as callers of models have it."""
    return {"Authorization": f"Bearer {call.secret}"} if call.secret else {}


def fn_key(call: Call) -> dict[str, str]:
    """Return the fields with a call's key, as callers of servers have it."""
    return {"Fn-Key": call.secret} if call.secret else {}


class Way(ABC):
    """A way in, over a kept connection to a known gateway process."""

    names: Sequence[str] = SERVERS
    """The functions that it leads to."""
    ends_at_refusals = False
    """Whether the connection ends when a key is refused, as the body is not read."""

    def __init__(self, line: Line, port: int) -> None:
        self._line = line
        self._port = port

    def __str__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def send(self, call: Call) -> None:
        """Send a call."""

    def receive(self) -> int:
        """Return the mark that answers the call which was sent, or the status of its refusal."""
        status, answer = self._line.receive()
        assert self._line.headers.get("Connection") != "close", answer
        return self.mark(answer) if status == 200 else status

    def mark(self, answer: Any) -> int:
        """Return the mark in an answer."""
        return int(answer["mark"])

    def expected(self, world: Operator, call: Call) -> int:
        """Return what `receive` must return."""
        return outcome(world, call.secret, call.name)


class Function(Way):
    """A model at /fn."""

    names = MODELS

    def send(self, call: Call) -> None:
        self._line.send("POST", f"/fn/{call.name}", {"inputs": {"x": [ROW]}}, bearer(call))

    def mark(self, answer: Any) -> int:
        return int(answer["outputs"]["y"][0][0])


class Inference(Way):
    """A model at /v2."""

    names = MODELS

    def send(self, call: Call) -> None:
        given = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": ROW}
        self._line.send("POST", f"/v2/models/{call.name}/infer", {"inputs": [given]}, bearer(call))

    def mark(self, answer: Any) -> int:
        return int(answer["outputs"][0]["data"][0])


class Exchange(Way):
    """A server function at /fn."""

    def send(self, call: Call) -> None:
        self._line.send("GET", f"/fn/{call.name}/any", None, fn_key(call))


class Denied(Way):
    """A path of a server function that some revisions deny."""

    def send(self, call: Call) -> None:
        self._line.send("GET", f"/fn/{call.name}{PRIVATE}", None, fn_key(call))

    def expected(self, world: Operator, call: Call) -> int:
        found = outcome(world, call.secret, call.name)
        return 403 if found < 100 and world.functions[call.name].made.denies else found


class OwnHost(Way):
    """A server function's own host, which is there as long as the function."""

    def send(self, call: Call) -> None:
        host = {"Host": f"{call.name}.localhost:{self._port}"}
        self._line.send("GET", "/any", None, {**host, **fn_key(call)})

    def expected(self, world: Operator, call: Call) -> int:
        return outcome(world, call.secret, call.name) if call.name in world.functions else 421


class Model(Way):
    """A server function's model at /v1, by the function's name or by an alias."""

    ends_at_refusals = True

    def send(self, call: Call) -> None:
        wanted = {"model": call.alias or call.name, "input": "x"}
        self._line.send("POST", "/v1/embeddings", wanted, bearer(call))

    def expected(self, world: Operator, call: Call) -> int:
        # A name that means nothing is that of no function. An open server takes what is no key for
        # a key of the program's.
        name = world.aliases.get(call.alias, "") if call.alias else call.name
        is_key = call.secret in world.live or not world.is_open
        found = outcome(world, call.secret if is_key else None, name)
        return 404 if found == 403 else found


class Card(Model):
    """What /v1 says about a model: as who may call it, without a body."""

    ends_at_refusals = False

    def send(self, call: Call) -> None:
        self._line.send("GET", f"/v1/models/{call.alias or call.name}", None, bearer(call))

    def mark(self, answer: Any) -> int:
        return 0

    def expected(self, world: Operator, call: Call) -> int:
        found = super().expected(world, call)
        return 0 if found < 100 else found


class Rpc(Way):
    """A model over gRPC."""

    names = MODELS

    def __init__(self, channel: grpc.Channel) -> None:
        self._infer: Any = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", _INFER.SerializeToString, _INFERRED.FromString
        )

    def send(self, call: Call) -> None:
        asked = _INFER(model_name=call.name)
        asked.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend(ROW)
        metadata = [(name.lower(), value) for name, value in bearer(call).items()]
        self._sent = self._infer.future(asked, metadata=metadata, timeout=ANSWER_S)

    def receive(self) -> int:
        error = self._sent.exception()
        if error is not None:
            return STATUSES[error.code()]
        return int(struct.unpack_from("<f", self._sent.result().raw_output_contents[0])[0])


HTTP = (Function, Inference, Exchange, Denied, OwnHost, Model, Card)


@contextmanager
def channels(server: GrpcServerProcess) -> Iterator[dict[int, grpc.Channel]]:
    """Open a channel of gRPC to each gateway process, by its pid."""
    assert server.http.process is not None
    pid = server.http.process.pid
    found: dict[int, grpc.Channel] = {}
    with ExitStack() as stack:
        known = peers(server.port)
        for _ in range(CHANNELS_MAX):
            if len(found) == len(gateway_pids(pid)):
                yield found
                return
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(server.address, options))
            grpc.channel_ready_future(channel).result(ANSWER_S)
            (mine,) = peers(server.port) - known
            known |= {mine}
            found.setdefault(holder(pid, server.port, mine), channel)
        raise AssertionError("not all gateway processes take connections")


@pytest.fixture(scope="module", params=["1", "4"], ids=["one process", "four processes"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcServerProcess]:
    """A server with one or four gateway processes."""
    folder = tmp_path_factory.mktemp("changes")
    options = ("--workers", request.param, "--cpu-slots", "16")
    # All connections are made before the first call.
    patient = {"FN_HEAD_READ_S": "60"}
    with grpc_server(folder, *options, environment=patient) as server:
        yield server
        assert [line for line in server.http.log if "workers are behind" in line] == []
        assert list(server.http.complaints) == []


@pytest.fixture(scope="module")
def world(
    server: GrpcServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """The operator of the server."""
    operator = Operator(server.http, tmp_path_factory.mktemp("bundles"))
    operator.prepare()
    yield operator
    operator.close()


@pytest.fixture(scope="module")
def ways(server: GrpcServerProcess) -> Iterator[list[Way]]:
    """Every way in, over a connection of its own to each gateway process."""
    with lines(server.http, len(HTTP)) as found, channels(server) as by_pid:
        port = urlsplit(server.http.url).port or 0
        http = [way(line, port) for line, way in zip(found, HTTP * len(by_pid), strict=True)]
        yield [*http, *map(Rpc, by_pid.values())]


def random_call(random: Random, world: Operator) -> Call:
    """Return a call with a key that is valid or was, or without one."""
    name, alias = random.choice((*MODELS, *SERVERS)), random.choice(("", *ALIASES))
    return Call(name, random.choice((None, *world.live, *world.dead)), alias)


def check(ways: list[Way], world: Operator, call: Call, orders: list[str]) -> None:
    """Send a call on every connection at once; each must get what the operator expects."""
    expected = {way: way.expected(world, call) for way in ways if call.name in way.names}
    asked = [way for way, one in expected.items() if not (one == 401 and way.ends_at_refusals)]
    for way in asked:
        way.send(call)
    got = {way: way.receive() for way in asked}
    wrong = [
        f"{way}: {got[way]}, not {expected[way]}" for way in asked if got[way] != expected[way]
    ]
    assert not wrong, (call, orders)


@pytest.mark.parametrize("seed", range(ORDERS))
def test_every_connection_sees_a_change_at_once(
    world: Operator, ways: list[Way], seed: int
) -> None:
    """Once the admin API has answered, no process calls by what was there before."""
    random = Random(seed)
    world.reset()
    done: list[str] = [f"seed {seed}"]
    first = (MODELS[0], SERVERS[0])
    done += [world.deploy(name, random.choice(made_for(name))) for name in first]
    asked = [random_call(random, world) for _ in range(ASKED)]
    for call in asked:
        check(ways, world, call, done)
    for _ in range(STEPS):
        done.append(world.change(random))
        asked = [*asked[2:], random_call(random, world), random_call(random, world)]
        for call in random.sample(asked, len(asked)):
            check(ways, world, call, done)


def test_a_change_waits_for_a_process_that_is_behind(
    server: GrpcServerProcess, world: Operator, ways: list[Way]
) -> None:
    """While one process is stopped no change is over; once it goes on, it has the change."""
    assert server.http.process is not None
    others = [pid for pid in gateway_pids(server.http.process.pid) if pid != world.pid]
    if not others:
        pytest.skip("one process applies its own changes")
    model, web = MODELS[0], SERVERS[0]
    world.reset()
    world.deploy(web, made_for(web)[0])
    changes: list[Callable[[], str]] = [
        lambda: world.deploy(model, made_for(model)[0]),
        lambda: world.deploy(model, made_for(model)[1]),
        lambda: world.roll_back(model, min(world.functions[model].revisions)),
        lambda: world.add_key(("invoke",)),
        lambda: world.remove_key(world.secrets[0]),
        lambda: world.decide("open"),
        world.rotate,
        lambda: world.add_alias(web, ALIASES[0]),
        lambda: world.remove_alias(ALIASES[0]),
        lambda: world.remove(model),
    ]
    done: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        for change in changes:
            with frozen(others[0]):
                changing = pool.submit(change)
                assert not wait([changing], BEHIND_S).done, (done, changing.result())
            done.append(changing.result())
            for secret in (None, *world.live, *world.dead):
                for name in (model, web):
                    check(ways, world, Call(name, secret, ALIASES[0]), done)
