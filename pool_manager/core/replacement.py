"""Replacement of servers that are ready and do not work any more.

`liveness` judges one server by its readings. Here its verdict is held against what one server does
not know, and carried out: the server is drained softly for its own pool. It takes no new exchanges,
and another one starts for them, first where there is room, else in its place
(`Evictor.end_condemned`). If it moves again before that one is ready, the drain is revoked. What is
open on it when it ends is resent by the gateways, or fails with `replica_hung`.
"""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import AskSample, Command, KeepLearnt, Note, RecordSilence
from pool_manager.core.health.guards import HUNG
from pool_manager.core.health.liveness import Cause, Judgement, Verdict, Watch, judge_idle
from pool_manager.core.pool import Pool
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import Replica, State
from runtime_image.contract.samples import SampleVerdict

NOT_ANSWERING = "is not answering"
"""Begins the reason of a soft drain that replaces a server."""
LEARNT_S = 60.0
"""Min seconds between two KeepLearnt of one replica."""
HOST_SILENT_S = 10.0
"""Silence of every other server of a host, from which on the host is the cause."""


class Replacements:
    """Applies readings of servers; begins, revokes and ends replacements."""

    def __init__(self, cluster: Cluster, replicas: ReplicaLifecycle) -> None:
        self._cluster = cluster
        self._replicas = replicas

    def observe(self, event: events.Observed, now: float, commands: list[Command]) -> set[str]:
        """Apply a reading; return the pools to be settled, none unless something has changed.

        (1) Only servers that were ready are judged, and none that drains for anything else.
        (2) At the limit of a silence the golden sample is asked: `sampled` follows. Now and then
            the sidecar is given what was learnt, which survives the manager there.
        (3) One that is being replaced, and works again, is to be taken back; else it ends once
            another one is ready.
        (4) A verdict REPLACE is held against the guards; what they hold back is reported.
        (5) A change of the verdict is noted.
        """
        replica = self._cluster.find(event.id)
        if replica is None or not self._is_judged(replica):  # (1)
            return set()
        pool = self._cluster.pools[replica.pool]
        if event.reading.given > replica.given:
            replica.given = event.reading.given
            self._cluster.guards.served(pool.function)
        watch = replica.watch = replica.watch or Watch(replica.ready_s)
        judged = watch.read(
            event.reading, now, pool.silences, gpu=event.gpu, step_s=pool.spec.step_s
        )
        if judged.verdict is Verdict.ASK:  # (2)
            commands.append(AskSample(replica.id))
        self._keep_learnt(replica, pool, now, commands)
        if replica.condemned is not None:  # (3)
            self._follow(replica, judged, now, commands)
            return {pool.key}
        if judged.verdict is Verdict.REPLACE and judged.cause is not None:  # (4)
            obstacle = self._obstacle(replica, pool, judged.cause, now)
            if not obstacle:
                self._condemn(replica, judged, now, commands)
                return {pool.key}
            text = f"{judged.text}; it is not replaced: {obstacle}"
            judged = Judgement(Verdict.REPORT, judged.cause, text)
        return self._report(replica, judged, commands)  # (5)

    def sampled(
        self, event: events.SampleAnswered, now: float, commands: list[Command]
    ) -> set[str]:
        """Apply what a golden sample showed; return the pools to be settled.

        What a silent server showed is judged with its next reading, together with the rest. An idle
        one has no readings: it is judged by its sample alone, and replaced if the guards allow it.
        """
        replica = self._cluster.find(event.id)
        if replica is None:
            return set()
        if event.in_silence:
            if replica.watch is not None:
                replica.watch.sampled(event.verdict, event.reason)
            return set()
        if event.verdict is SampleVerdict.RIGHT:
            replica.is_kept_wrong = False
        judged = judge_idle(event.verdict, event.reason)
        is_wrong = judged.verdict is Verdict.REPLACE and judged.cause is not None
        if not is_wrong or replica.condemned is not None or not self._is_judged(replica):
            return set()
        assert judged.cause is not None
        pool = self._cluster.pools[replica.pool]
        obstacle = self._obstacle(replica, pool, judged.cause, now)
        if not obstacle:
            replica.watch = replica.watch or Watch(replica.ready_s)
            self._condemn(replica, judged, now, commands)
        elif not replica.is_kept_wrong:
            replica.is_kept_wrong = True
            text = f"{replica.id} {_why(judged)}; it is not replaced: {obstacle}"
            commands.append(Note(replica.pool, text))
        return {pool.key}

    def _keep_learnt(
        self, replica: Replica, pool: Pool, now: float, commands: list[Command]
    ) -> None:
        if now < replica.learnt_due_s:
            return
        replica.learnt_due_s = now + LEARNT_S
        learnt = pool.silences.learnt()
        if learnt.known and learnt != replica.learnt:
            replica.learnt = learnt
            commands.append(KeepLearnt(replica.id, learnt))

    def _is_judged(self, replica: Replica) -> bool:
        spec = self._cluster.pools[replica.pool].spec
        if not spec.is_server or replica.role != "serve" or spec.hang == "off":
            return False
        is_leaving = replica.state is State.DRAINING and replica.condemned is not None
        return replica.is_ready or (is_leaving and not replica.is_revoked)

    def _obstacle(self, replica: Replica, pool: Pool, cause: Cause, now: float) -> str:
        """Return why a server that does not work may not be replaced, "" if it may."""
        if pool.spec.hang == "report":
            return 'hang = "report"'
        if cause in HUNG and self._is_host_silent(replica, now):
            return f"every server of host {replica.host} is silent, so the host is the cause"
        if cause in HUNG and any(
            one.condemned is not None
            for other in (pool, *self._cluster.siblings(pool))
            for one in other.replicas.values()
        ):
            return "another one is being replaced"
        return self._cluster.guards.obstacle(pool.function, cause, now)

    def _is_host_silent(self, replica: Replica, now: float) -> bool:
        """Whether others on the same host have open exchanges too, and none of them moves."""
        watches = [
            one.watch
            for one in self._cluster.on_host(replica.host)
            if one is not replica and one.watch is not None and one.is_ready
        ]
        others = [one.silent_s(now) for one in watches if one.is_watched(now)]
        return bool(others) and min(others) >= HOST_SILENT_S

    def _condemn(
        self, replica: Replica, judged: Judgement, now: float, commands: list[Command]
    ) -> None:
        replica.condemned = judged.cause
        if judged.cause is not Cause.WRONG:
            replica.trouble = judged.text
            commands.append(RecordSilence(replica.pool, replica.id, judged.text))
        self._replicas.quiesce(replica, replica.pool, _why(judged), now, commands)

    def _follow(
        self, replica: Replica, judged: Judgement, now: float, commands: list[Command]
    ) -> None:
        """Take back a server that works again: exchanges move, or the probe that condemned it is
        answered. Those of one that refuses connections or answers wrong move all the same. Else it
        ends once enough others are ready."""
        assert replica.watch is not None
        cause = replica.condemned
        moves = judged.verdict is Verdict.MOVED and cause not in (Cause.REFUSED, Cause.WRONG)
        is_probed = cause in (Cause.REFUSED, Cause.FAILING, Cause.UNREADY)
        if moves or (is_probed and replica.watch.is_right):
            # `ReplicaLifecycle.revoke_unclaimed` revokes the drain.
            replica.condemned, replica.trouble = None, ""
            return
        self.finish(self._cluster.pools[replica.pool], now, commands)

    def finish(self, pool: Pool, now: float, commands: list[Command]) -> None:
        """End the servers of a pool that are replaced, once enough others are ready."""
        if pool.ready() < max(1, pool.wanted):
            return
        for replica in list(pool.replicas.values()):
            if replica.is_hung(now):
                self._replicas.end_condemned(replica, now, commands)

    def _report(self, replica: Replica, judged: Judgement, commands: list[Command]) -> set[str]:
        """Note what a server does, once for each change; it stays in service."""
        assert replica.watch is not None
        works = judged.verdict in (Verdict.MOVED, Verdict.HELD_UP) or replica.watch.is_right
        if judged.verdict in (Verdict.WAITING, Verdict.ASK) and not works:
            return set()  # nothing new: what was reported stays until it works
        trouble = judged.text if judged.verdict is Verdict.REPORT else ""
        is_known = bool(trouble) == bool(replica.trouble) and replica.reported is judged.cause
        if is_known:
            return set()
        text = f"{NOT_ANSWERING}: {trouble}"
        if trouble:
            commands.append(RecordSilence(replica.pool, replica.id, trouble))
        else:
            text = "answers again" if works else "is waited for no more"
        replica.trouble, replica.reported = trouble, judged.cause
        commands.append(Note(replica.pool, f"{replica.id} {text}"))
        self._cluster.changed.add(replica.pool)
        return {replica.pool}


def _why(judged: Judgement) -> str:
    """Return why a server is replaced, without its subject. Wrong answers are answers."""
    if judged.cause is Cause.WRONG:
        return judged.text.removeprefix("it ")
    return f"{NOT_ANSWERING}: {judged.text}"
