"""The I/O shell around the dispatcher: calls in, frames out, answers back.

`Delivery` executes the dispatcher's commands and reports demand to the pool manager.
`follow_traffic` moves waiting calls when a function's traffic moves to another revision.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from gateway.data_links import DataLinks, Delivered, HeldCall, Outcome
from gateway.deaths import DeathCauses
from gateway.dispatch.call import (
    CloseIdle,
    Command,
    Decline,
    End,
    Fail,
    GiveUp,
    Quiesced,
    Recall,
    Send,
    Stage,
    TellTunnel,
)
from gateway.dispatch.demand import DemandReports
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.failures import cancelled_error
from gateway.dispatch.held import HeldBytes
from gateway.dispatch.pool import UNKNOWN
from gateway.dispatch.redirects import RerunPolicy
from gateway.hosts.connections import Connect, HostConnections, connection_of
from gateway.metrics.counters import CounterStore, LocalStore
from gateway.metrics.ledger import Balance, Ledger
from gateway.ports import CallHistory, Pools
from gateway.server_links import ExchangeCall, ServerLinks
from gateway.shared_memory import SlabPool
from gateway.upstream import UpstreamConnection
from registry.catalog import Catalog, Change, Deployed
from registry.compatibility import breaks
from registry.errors import (
    FnError,
    Poison,
    ReplicaDied,
    UpstreamFailed,
    UpstreamTimeout,
    WaitBudgetOver,
)
from registry.exchange import Demand, Load, PoolEndpoints, decode_endpoints, encode
from registry.spec import may_rerun
from registry.tasks import Tasks, every

log = structlog.get_logger()

SWEEP_S: Final = 0.1
DEMAND_S: Final = 1.0
GONE: Final = PoolEndpoints([], "gone", "removed")


class Delivery:
    """Owner of the dispatcher. Event loop thread only.

    Demand is reported every second for all pools with load. It is also reported at once when a call
    waits at a pool without a replica, when another pool becomes idle meanwhile, and when a link is
    lost. Other changes happen with every request and would not change the manager's decisions.

    `slabs` provides shared memory for large bodies.
    """

    def __init__(
        self,
        limits: Limits,
        worker: str,
        pools: Pools,
        history: CallHistory,
        store: CounterStore | None = None,
        connect: Connect = connection_of,
    ) -> None:
        """Create the dispatcher and its links, in the event loop's thread.

        `store` holds the ledger's counters; by default they are in this process's memory. `connect`
        makes the connections to other hosts, by default those of their routes.
        """
        self._ledger = Ledger(store or LocalStore())
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._pools = pools
        self._history = history
        self._dispatcher = Dispatcher(limits)
        self._tasks = Tasks("gateway")
        self._seq = itertools.count(1)
        self._urgent: set[str] = set()
        self.slabs = SlabPool(limits.bytes_max)
        self._hosts = HostConnections(connect, self._tasks, self._uses_host)
        self._links = DataLinks(
            worker,
            self._dispatcher,
            self.slabs,
            self._tasks,
            self._perform,
            self._report_soon,
            self._on_answered,
            self._hosts,
        )
        self._servers = ServerLinks(
            worker,
            self._dispatcher,
            self._tasks,
            self._perform,
            self._report_soon,
            self._hand_over,
            self._hosts,
        )
        self._reports = DemandReports(
            lambda key: self._dispatcher.load(key, monotonic()), self.is_cold
        )
        self._death_causes = DeathCauses(self._loop)
        self._idle: asyncio.Event | None = None
        self._is_closed = False

    def open(self) -> None:
        """Start the periodic demand reports and the sweep of deadlines."""
        self.report()
        self._tasks.root("sweep", every(SWEEP_S, self._sweep))
        self._tasks.root("demand", every(DEMAND_S, self.report))

    def report(self) -> None:
        """Report the demand of all pools."""
        called, loads = self._dispatcher.take_called(), self.loads()
        self._reports.full(loads)
        self._send_demand(Demand(self._worker, next(self._seq), True, loads, called))

    @property
    def tasks(self) -> Tasks:
        """Owner of the background tasks."""
        return self._tasks

    async def close(self) -> None:
        """Stop. Calls that are still held get no answer."""
        self._is_closed = True
        self._links.close()
        self._servers.close()
        self._death_causes.close()
        await self._hosts.close()
        await self._tasks.close()
        self.slabs.close()
        self._pools.worker_lost(self._worker)

    def on_manager_lost(self) -> None:
        """Handle the final loss of the pool manager; see `Dispatcher.on_manager_lost`."""
        self._perform(self._dispatcher.on_manager_lost(monotonic()))

    async def wait_idle(self) -> None:
        """Wait until every accepted call has ended."""
        self._idle = asyncio.Event()
        if not self._dispatcher.is_idle:
            await self._idle.wait()
        self._idle = None

    @property
    def held(self) -> HeldBytes:
        """Count of the bytes that this process holds."""
        return self._dispatcher.held

    def is_cold(self, pool: str) -> bool:
        """Return whether a call for this pool would wait for a replica to start."""
        view = self._dispatcher.pools.get(pool)
        return view is None or not view.is_connected

    def send_now(self, call: HeldCall) -> bool:
        """Accept a call and send it at once. Returns False if only `submit` can decide about it."""
        if not self._dispatcher.send_now(call, call.arrived_s):
            return False
        self._ledger.accept()
        self._links.send(call.link, call.id, call)
        return True

    def submit(self, call: HeldCall | ExchangeCall) -> None:
        """Accept a call. Raises like `Dispatcher.submit`; the call is then not accepted."""
        if call.pool not in self._dispatcher.pools:
            self._update_expected(call.pool)
        try:
            commands = self._dispatcher.submit(call, monotonic())
            self._ledger.accept()
            self._perform(commands)
        finally:
            if call.was_held:
                self._reports.on_held(call.pool)
                self._report_soon(call.pool)

    def submit_exchange(self, call: ExchangeCall) -> None:
        """Accept an exchange. Raises like `Dispatcher.submit`; the call is then not accepted.

        `call.opened` may be called before this returns.
        """
        if call.is_free or not self._dispatcher.send_now(call, call.arrived_s):
            self.submit(call)
            return
        self._ledger.accept()
        self._servers.send(call.link, call.id, call)

    def end_exchange(self, call: ExchangeCall, *, kept: bool, outcome: str = "completed") -> None:
        """End an exchange that was opened; without effect on one that has ended.

        `kept`: its connection is in order and may serve the next exchange; otherwise it is closed.
        `outcome` is one of the ledger's ENDINGS.
        """
        if call.stage is not Stage.STARTED:
            return
        commands = self._dispatcher.exchanges.on_ended(call, monotonic(), kept=kept)
        self._ledger.end(outcome)
        if self._reports.on_ended(call.pool):
            self._report_soon(call.pool)
        self._perform(commands)

    def retry_exchange(self, call: ExchangeCall, *, was_refused: bool = False) -> None:
        """Queue an exchange again that was opened and has lost its connection.

        It keeps its place. `was_refused`: nothing was sent on the connection. `call.done` gets
        WaitBudgetOver if its wait budget is over.
        """
        if was_refused:
            self.tell_unanswered(call)
        exchanges = self._dispatcher.exchanges
        self._perform(exchanges.retry(call, monotonic(), was_refused=was_refused))
        if call.stage is Stage.QUEUED and self.is_cold(call.pool):
            call.was_held = True
            self._reports.on_held(call.pool)
            self._report_soon(call.pool)

    def fail_exchange(self, call: ExchangeCall, error: FnError) -> None:
        """End an exchange that was opened with an error, which `call.done` gets.

        If its replica died, this waits for the cause and adds it to the error, unless only the
        connection to its host broke. After Poison, its body is refused for a while.
        """
        if call.stage is not Stage.STARTED:
            return
        has_died = isinstance(error, ReplicaDied | Poison) or self.has_lost_link(call)
        if isinstance(error, UpstreamFailed | UpstreamTimeout):
            self.tell_unanswered(call)
        if isinstance(error, Poison):
            self._dispatcher.refuse_body(call, monotonic())
        self.end_exchange(call, kept=False, outcome="failed")
        self._end_failed(call, error, has_died=has_died and not call.is_broken)

    def tell_tunnel(self, call: ExchangeCall, *, is_quiet: bool) -> None:
        """Note that an opened exchange is a WebSocket, which is quiet or in use."""
        self._perform(self._dispatcher.exchanges.on_tunnel(call, monotonic(), is_quiet=is_quiet))
        self._report_soon(call.pool)

    def tell_unanswered(self, call: ExchangeCall) -> None:
        """Have the server probed: an opened call got no whole answer, or not in time."""
        is_linked = call.stage is Stage.STARTED and not self.has_lost_link(call)
        if is_linked and not call.is_broken:
            self._servers.tell_unanswered(call.link, call.id)

    def is_stopping(self, call: ExchangeCall) -> bool:
        """Return whether the replica of an opened exchange is to stop, or was when it ended."""
        return self._dispatcher.exchanges.is_stopping(call)

    def limit_connections(self, most: int) -> None:
        """Set the max connections to functions' servers, idle ones included."""
        self._servers.connections_max = most

    def has_lost_link(self, call: ExchangeCall) -> bool:
        """Return whether an exchange that was opened has lost the link to its replica."""
        pool = self._dispatcher.pools.get(call.pool)
        return pool is not None and call in pool.detached

    def ask_server(self, call: ExchangeCall, answered: Callable[[bool], None]) -> None:
        """Ask whether the server of an opened exchange still listens: `answered(listens)`, at once
        or later. It does not if the link to its replica is lost."""
        if self.has_lost_link(call):
            answered(False)
        else:
            self._servers.ask(call.link, answered)

    def _hand_over(self, call: ExchangeCall, connection: UpstreamConnection) -> None:
        try:
            call.opened(connection)
        except Exception:  # a defect of the proxy must not keep the slot
            log.exception("an exchange could not begin", replica=connection.endpoint.id)
            if call.stage is Stage.STARTED:
                self.end_exchange(call, kept=False, outcome="failed")
                call.done(UpstreamFailed("the exchange could not begin"))

    def cancel(self, call: HeldCall | ExchangeCall) -> None:
        """Cancel a call whose client has disconnected; an open exchange is aborted."""
        before = call.stage
        self._death_causes.cancel(call)
        commands = self._dispatcher.cancel(call, monotonic())
        if call.stage is not before:
            self._ledger.end("cancelled")
            if self._reports.on_ended(call.pool) and call.is_exchange:
                self._report_soon(call.pool)
        self._perform(commands)

    def move(self, source: str, target: str, rerun_policy: RerunPolicy | None) -> None:
        """Move a function's traffic; see `Dispatcher.on_traffic_moved`."""
        self._perform(self._dispatcher.on_traffic_moved(source, target, rerun_policy, monotonic()))
        self._report_soon(source)

    def receive_endpoints(self, data: bytes) -> None:
        """Apply an Endpoints message of the manager. Messages after `close` are ignored."""
        if self._is_closed:
            return
        message = decode_endpoints(data)
        now = monotonic()
        self._hosts.update(message.hosts, now)
        for key, endpoints in message.pools.items():
            self._on_endpoints(key, endpoints, now)
        if message.full:
            for key in set(self._dispatcher.pools) - set(message.pools):
                self._on_endpoints(key, GONE, now)

    def endpoints(self, pool: str) -> PoolEndpoints:
        """Return the endpoints that the manager last published for a pool; cold if unknown."""
        view = self._dispatcher.pools.get(pool)
        return view.endpoints if view else UNKNOWN

    def states(self) -> dict[str, str]:
        """Return the state of every pool except cold pools without calls."""
        return {key: pool.endpoints.state for key, pool in self._dispatcher.pools.items()}

    def loads(self) -> dict[str, Load]:
        """Return the queued and in-flight requests per pool."""
        return self._dispatcher.loads(monotonic())

    def balance(self) -> Balance:
        """Return the current ledger of all calls accepted by this process."""
        pools = self._dispatcher.pools.items()
        held = {key: count for key, pool in pools if (count := pool.held)}
        owed = {key: count for key, pool in pools if (count := pool.owed)}
        return self._ledger.balance(held, owed)

    def _on_endpoints(self, key: str, endpoints: PoolEndpoints, now: float) -> None:
        self._death_causes.on_causes(endpoints)
        self._perform(self._dispatcher.on_endpoints(key, endpoints, now))
        if key in self._dispatcher.pools:
            self._update_expected(key)
        replicas = endpoints.replicas
        self._links.reconcile(key, [each for each in replicas if not each.is_server])
        self._servers.reconcile(key, [each for each in replicas if each.is_server])

    def _uses_host(self, host: str) -> bool:
        return self._links.has_host(host) or self._servers.has_host(host)

    def _update_expected(self, key: str) -> None:
        self._dispatcher.pool(key).cold_start = self._history.expected(key)

    def _perform(self, commands: list[Command]) -> None:
        for command in commands:
            try:
                self._execute(command)
            except Exception:  # a defect in one call must not strand the others
                log.exception("a command could not be done", wanted=type(command).__name__)
        if self._idle is not None and self._dispatcher.is_idle:
            self._idle.set()

    def _execute(self, command: Command) -> None:
        match command:  # the most frequent ones first
            case Send(link, id, call):
                (self._servers if call.is_exchange else self._links).send(link, id, call)
            case End(link, id, kept):
                self._servers.end(link, id, kept=kept)
            case Recall(link, id):
                self._links.recall(link, id)
            case GiveUp(link, reason):
                self._links.abort(link, reason)
            case Fail():
                self._fail(command)
            case CloseIdle(link):
                self._servers.close_idle(link)
            case Decline(link):
                self._servers.decline(link)
            case TellTunnel(link, id, is_quiet):
                self._servers.tell_tunnel(link, id, is_quiet=is_quiet)
            case Quiesced(link, count):
                self._servers.quiesced(link, count)

    def _fail(self, command: Fail) -> None:
        call, error = command.call, command.error
        assert isinstance(call, HeldCall | ExchangeCall)
        self._ledger.end("expired" if isinstance(error, WaitBudgetOver) else "failed")
        self._reports.on_ended(call.pool)
        has_died = isinstance(error, ReplicaDied | Poison) and call.deaths > 0
        self._end_failed(call, error, has_died=has_died)

    def _end_failed(self, call: HeldCall | ExchangeCall, error: FnError, *, has_died: bool) -> None:
        """Pass its error to a call; if its replica died, with the cause, once that is known."""
        if has_died:
            self._death_causes.defer(call, error, self.endpoints(call.pool))
        else:
            call.done(error)

    def _sweep(self) -> None:
        now = monotonic()
        self._perform(self._dispatcher.sweep(now))
        self.slabs.sweep(now)
        self._servers.sweep(now)
        self._hosts.sweep(now)

    def _report_soon(self, pool: str) -> None:
        """Report demand of this pool, and of its successor, before the loop's next iteration."""
        if not self._urgent:
            self._loop.call_soon(self._report_urgent)
        self._urgent |= {pool, self._dispatcher.successor(pool)}

    def _on_answered(self, pool: str, call: HeldCall | None, outcome: Outcome | None) -> None:
        """Finish a call that a replica has ended; `call` is None if its client has disconnected."""
        if self._reports.on_ended(pool):
            self._report_soon(pool)
        if call is not None:
            self._ledger.end("completed" if isinstance(outcome, Delivered) else "failed")
            call.done(outcome or cancelled_error(call, monotonic()))

    def _report_urgent(self) -> None:
        keys, self._urgent = self._urgent, set()
        self._send_demand(Demand(self._worker, next(self._seq), False, self._reports.partial(keys)))

    def _send_demand(self, demand: Demand) -> None:
        self._pools.receive_demand(encode(demand))


def follow_traffic(catalog: Catalog, delivery: Delivery) -> Callable[[], None]:
    """Subscribe to the catalog: waiting calls move with their function's traffic.

    Returns a function that ends the subscription.
    """

    def changed(change: Change) -> None:
        before, after = change.before, change.after
        if before is None or after is None or before.revision.key == after.revision.key:
            return
        delivery.move(before.revision.key, after.revision.key, rerun_policy(before, after))

    return catalog.subscribe(changed)


def rerun_policy(before: Deployed, after: Deployed) -> RerunPolicy | None:
    """Return how `after` runs calls meant for `before`; None if inputs may not fit `after`."""
    if breaks(before.revision, after.revision):
        return None
    return RerunPolicy(may_rerun(after), after.function.limits.timeout_s)
