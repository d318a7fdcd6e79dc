"""Each message of the gateway protocol, and an answer to each kind of question."""

from __future__ import annotations

from typing import Any

from admin.workers import messages as m
from gateway.http.connected import Connected, Connections
from gateway.metrics.counters import Exemplar, SampleExemplar
from gateway.metrics.ledger import Balance
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from gateway.oip.statistics import RevisionStatistics
from gateway.settings import GatewaySettings
from registry.exchange import Demand, Endpoints, Expected, Load, PoolEndpoints, encode
from registry.model.keys import Key
from registry.openness import Openness
from registry.upstream_keys import UpstreamKey
from registry.usage import UsageRow
from tests.support import nouns

DEPLOYED = nouns.deployed()
LEDGER = Balance(3.0, {"completed": 1.0}, {"a": 1}, {"a": 1})
MARKED = SampleExemplar("n_bucket", ("le", "1.0"), Exemplar(("request_id", "a"), 0.5, 100.0))
ACTIVITY = m.Activity(
    3,
    12,
    [RateSample("default", "digits", (0, 1))],
    [Failure("default", "digits", "digits@3", "poison", 1.5, "why", "r", "q", 9)],
    ["task x ended"],
    [m.Arrived("default", "digits", 3)],
    [UsageRow("k", "default", "digits", 3600, busy_ms=5)],
    [
        m.Woken("default", "digits", "r1", {"load": 1.5}),
        m.Woken("default", "digits", "r2", {"load": 1.5}, ("request_id", "a")),
    ],
)
BOTH: list[Any] = [
    m.Hello(3, "1.2.3"),
    m.Ask(7, m.Applied()),
    m.Ask(7, m.Report()),
    m.Ask(7, m.ReadLedger()),
    m.Ask(7, m.ListConnections("default", "web")),
    m.Ask(7, ACTIVITY),
    m.Ask(7, m.Activity(4)),
    m.Ask(7, m.ReadStatistics(["default/digits@1"])),
    m.Ask(7, m.LoadModel("default", "digits@1", 2.5)),
    m.Ask(7, m.UnloadModel("default", "digits")),
    m.Answer(7),
    m.Answer(8, error=m.Refusal("no_room", "no room", 5.0, {"a": [1]}, {"log_tail": ["x"]})),
    m.Leave(7),
    m.Beat(),
]
DOWN: list[Any] = [
    m.Welcome("7", GatewaySettings(), "json", "/s", True, True, b"\x00secret"),
    m.Functions([m.FunctionNow("default", "digits", [DEPLOYED])], [("default", "digits")]),
    m.Functions([m.FunctionNow("default", "gone", [])]),
    m.Keys([Key("k", "ab" * 32, ("invoke:digits",))], [], Openness.OPEN, is_whole=True),
    m.UpstreamKeysNow([UpstreamKey("k", "s3cret")], [UpstreamKey("gone")]),
    m.Estimates({"default/digits@1": Expected(0.1, 0.25, 0.5, 7)}),
    m.Began(),
    m.Pools(encode(Endpoints(1, True, {"default/digits@1": PoolEndpoints([], "waking", "")}))),
    m.Stop(),
    *BOTH,
]
UP: list[Any] = [
    m.Wants(encode(Demand("7", 1, True, {"default/digits@1": Load(1, 2, 0.5)}))),
    m.Ready(8080),
    m.Failed("the port is taken", 98),
    m.Finished(),
    *BOTH,
]
ANSWERS: list[tuple[type[m.Question[Any]], Any]] = [
    (m.Applied, None),
    (m.Report, None),
    (m.ReadLedger, m.LedgerNow(LEDGER, [MARKED])),
    (m.Activity, None),
    (m.ListConnections, Connections([Connected("k", "events", 1.5, "/x", True)], 1, 2)),
    (m.ReadStatistics, [RevisionStatistics("default/digits@1")]),
    (m.LoadModel, None),
    (m.UnloadModel, None),
]
