"""Clients of server functions in containers: every kind of exchange, each answer verified."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.footprint import pause
from tests.chaos.ledger import Ledger
from tests.support.raw_http import Connection, Got, connected, request
from tests.support.raw_websocket import masked, read

ANSWER_S = 150.0
"""Longer than any answer may take: the wait budget and the exchange itself."""
KEPT_MAX = 1 << 20
"""Bytes of a body that are kept for a second try."""
AT_ONCE_MAX = 1 << 15
"""Bytes of a body that are sent before the answer is read."""
CALLS_MAX = 20
"""Max exchanges of one connection."""
AGAIN_S = 0.05
MESSAGES = 4
EVENTS = 6
IDEMPOTENT = ("GET", "PUT")
LIMITS = """
[device]
memory_mib = 200

[limits]
concurrency = 8
retry = "{retry}"
first_byte_s = 30
drain_s = 10

[scaling]
idle_s = 60
"""
"""Part of the manifest of every server function that the clients call."""


@dataclass(frozen=True)
class Kind:
    """One kind of exchange; `size`: bytes of the request's body, -1 for none."""

    method: str
    target: str
    size: int = -1

    def body(self, token: str) -> bytes | None:
        """Return the body of a request."""
        if self.size < 0:
            return None
        return (token.encode() * (self.size // len(token) + 1))[: self.size]

    def complaint(self, token: str, got: Got) -> str:
        """Return what is wrong with a whole answer; "" if it is right."""
        path, body = self.target.partition("?")[0], bytes(got.body)
        if path == "/show":
            sent, told = self.body(token) or b"", json.loads(body)
            want = (self.method, len(sent), hashlib.sha256(sent).hexdigest())
            return "" if (told["method"], told["bytes"], told["sha256"]) == want else "content"
        if path == "/sse":
            events = "".join(f"data: {number} \n\n" for number in range(EVENTS))
            return "" if body.decode() == events + "data: [DONE]\n\n" else "events"
        if path == "/until-end":
            return "" if body.decode() == f"{token} {token}" else "half of the answer"
        return "" if path == "/ws" or body.decode() == token else "content"


KINDS = {
    "get": Kind("GET", "/show"),
    "put": Kind("PUT", "/show", 2_000),
    "post": Kind("POST", "/show", 2_000),
    "upload": Kind("POST", "/show", 300_000),
    "large upload": Kind("PUT", "/show", 1_500_000),
    "slow get": Kind("GET", "/sleep?ms=150"),
    "slow put": Kind("PUT", "/sleep?ms=150", 100),
    "slow post": Kind("POST", "/sleep?ms=150", 100),
    "events": Kind("GET", f"/sse?n={EVENTS}&ms=30"),
    "until end": Kind("GET", "/until-end?ms=150"),
    "socket": Kind("GET", "/ws"),
    "eat": Kind("POST", "/eat?mib=1000"),
}
USUAL = [name for name in KINDS if name != "eat"]


@dataclass(frozen=True)
class Sent:
    """One exchange that was sent: its function, the function's `retry`, and its kind."""

    function: str
    retry: str
    kind: str
    token: str

    @property
    def may_rerun(self) -> bool:
        """Whether a request that a dead server may have run is run again."""
        is_idempotent = KINDS[self.kind].method in IDEMPOTENT
        return self.retry == "always" or (is_idempotent and self.retry != "never")

    @property
    def runs_max(self) -> int:
        """How often servers may read the request: the loss of a kept connection of a server that is
        being killed is no send."""
        return 3 if self.may_rerun else 1

    def forbidden(self, code: str, detail: str) -> bool:
        """Return whether the rules would have saved a request that got this 502."""
        if code not in ("replica_died", "upstream_failed"):
            return True
        if "retry is never" in detail:
            return self.retry != "never"
        if "was not kept" in detail:
            return KINDS[self.kind].size <= KEPT_MAX
        if "may have been run" in detail:
            return self.may_rerun
        return not ("twice" in detail or "in the middle" in detail)


@dataclass
class Exchanges:
    """Clients of all functions. `functions`: name and `retry` of each. `sent` has all exchanges by
    token, `answered` the tokens of those with a right answer. `think_s`: pause of a client after
    each exchange."""

    port: int
    functions: dict[str, str]
    fault_times: FaultTimes
    ledger: Ledger
    chance: Random
    counts: Counter[str] = field(default_factory=Counter)
    sent: dict[str, Sent] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    resting: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    think_s: float = 0.0
    refusals: dict[str, str] = field(default_factory=dict)
    """What the last refused exchange of each kind was told."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def call_on(self, ended: asyncio.Event) -> None:
        """Exchange over one connection after another until `ended`."""
        while not ended.is_set():
            if not self.fault_times.is_up:
                await pause(AGAIN_S)
                continue
            try:
                async with connected(self.port) as connection:
                    await self._use(connection, ended)
            except OSError as error:  # the port has no listener
                self.counts["connections refused"] += 1
                if self.fault_times.is_steady_since(time.monotonic()):
                    self.ledger.violated(f"a connection was refused: {error!r}")
                await pause(AGAIN_S)

    async def _use(self, connection: Connection, ended: asyncio.Event) -> None:
        for _ in range(self.chance.randint(1, CALLS_MAX)):
            awake = [name for name in self.functions if name not in self.resting]
            if ended.is_set() or not awake:
                await pause(AGAIN_S)
                return
            name = self.chance.choice(awake)
            if not await self.exchange(connection, name, self.chance.choice(USUAL)):
                return
            if self.think_s:
                await pause(self.think_s)

    async def exchange(self, connection: Connection, name: str, kind: str) -> bool:
        """Exchange once and judge the answer; return whether the connection may go on."""
        token = f"{name}-{next(self._numbers)}"
        sent = self.sent[token] = Sent(name, self.functions[name], kind, token)
        began_s = time.monotonic()
        if kind == "socket":
            got = await _talk(connection, name, token)
        else:
            got = await _ask(connection, sent)
        self.waits_s.append(time.monotonic() - began_s)
        self._judge(sent, got, began_s)
        return got.status == 200 and got.end == "whole" and not got.closes

    def _judge(self, sent: Sent, got: Got, began_s: float) -> None:
        who = f"#{sent.token.rpartition('-')[2]} {sent.kind} of {sent.function}"
        if got.end == "late":
            self.ledger.violated(f"{who}: no answer within {ANSWER_S:g} s: {got.status}")
        elif not got.status:
            self.counts["cut before the answer"] += 1
            if self.fault_times.is_steady_since(began_s):
                self.ledger.violated(f"{who}: cut off although no gateway process ended")
        elif got.status not in (101, 200):
            self._refused(sent, got, who, began_s)
        elif (got.get("server-name"), got.get("token")) != (sent.function, sent.token):
            self.ledger.violated(f"{who}: the answer of somebody else: {got}")
        elif got.end != "whole":
            self.counts["cut within the answer"] += 1
            if self.fault_times.is_calm_since(began_s):
                self.ledger.violated(f"{who}: cut off although nothing had happened: {got.end}")
        elif sent.kind == "until end" and not self.fault_times.is_steady_since(began_s):
            # The kernel ends the connections of a killed gateway as if its answer were complete.
            self.counts["until the end of a gateway"] += 1
        elif complaint := KINDS[sent.kind].complaint(sent.token, got):
            self.ledger.violated(f"{who}: wrong {complaint}: {bytes(got.body[:300])!r}")
        else:
            self.counts["right"] += 1
            self.counts[f"right: {sent.kind}"] += 1
            self.counts["cold starts"] += got.get("server-timing").startswith("cold")
            self.answered.add(sent.token)

    def _refused(self, sent: Sent, got: Got, who: str, began_s: float) -> None:
        code = got.code
        said = json.loads(got.body)["detail"] if code else bytes(got.body[:300]).decode()
        self.counts[f"{got.status} {code}"] += 1
        self.refusals[sent.kind] = f"{code}: {said}"
        if code == "shutting_down":
            is_wrong = self.fault_times.is_steady_since(began_s)
        else:
            is_wrong = got.status != 502 or sent.forbidden(code, said)
        if is_wrong:
            self.ledger.violated(f"{who}: {got.status} {code}: {said}")
        elif got.status == 502 and self.fault_times.is_calm_since(began_s):
            self.ledger.violated(f"{who}: {said}, although nothing had happened")

    def check_seen(self, seen: dict[str, list[str]]) -> None:
        """Compare with the tokens that each function's servers have read: no request was read by
        another function's server or more often than it may run, and each right answer's was."""
        for name, tokens in seen.items():
            for token, count in Counter(tokens).items():
                sent = self.sent.get(token)
                if sent is None or sent.function != name:
                    self.ledger.violated(f"{name} has read the request {token!r}: {sent}")
                elif count > sent.runs_max:
                    number = token.rpartition("-")[2]
                    text = f"{name} has read {sent.kind} #{number} {count} times ({sent.retry})"
                    self.ledger.violated(text)
                else:
                    self.counts["run again, as they may"] += count > 1
        lost = self.answered - {token for tokens in seen.values() for token in tokens}
        self.ledger.require(not lost, f"{len(lost)} right answers to requests that nobody read")


async def _ask(connection: Connection, sent: Sent) -> Got:
    kind = KINDS[sent.kind]
    body = kind.body(sent.token)
    target = f"/fn/{sent.function}{kind.target}"
    data = request(kind.method, target, body, {"Token": sent.token})
    if len(data) <= AT_ONCE_MAX:
        await connection.send(data)
        return await connection.answer(kind.method, ANSWER_S)
    sending = asyncio.ensure_future(connection.send(data))
    got = await connection.answer(kind.method, ANSWER_S)
    sending.cancel()
    await asyncio.wait([sending])
    return got


async def _talk(connection: Connection, name: str, token: str) -> Got:
    """Exchange messages over a WebSocket; its end is that of the answer."""
    key = base64.b64encode(os.urandom(16)).decode()
    fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Token": token}
    fields |= {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    await connection.send(request("GET", f"/fn/{name}/ws", None, fields))
    got = await connection.answer("GET", ANSWER_S)
    if got.status != 101:
        return got
    got.end = "cut"
    with suppress(OSError, asyncio.IncompleteReadError):
        for number in range(MESSAGES):
            message = f"{token} {number}".encode()
            await connection.send(masked(1, message))
            if await read(connection) != (1, message):
                got.fields = [("token", "another message")]
                return got
            await pause(AGAIN_S)
        await connection.send(masked(8, b""))
        if (await read(connection))[0] == 8:
            got.end = "whole"
    return got
