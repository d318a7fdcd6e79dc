"""Fetches what a trial has prepared, while its report is held back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from pool_manager.core import events
from pool_manager.core.state import Replica
from pool_manager.ports import Binding, Bundles
from pool_manager.replica.offer import fetch
from registry.errors import FnError
from registry.model import Prepared
from registry.tasks import Tasks
from runtime_image.contract.control import DATA_SOCKET
from runtime_image.contract.prepared import PREPARES, patience_s
from runtime_image.link.frames import LinkError

log = structlog.get_logger()

Feed = Callable[[events.Event], None]
PREPARED = "prepared"
WHY_NOT = "why_not_prepared"
"""What is added to a report: a `Prepared` or None, and why there is none."""


NEWS_S: Final = 3.0
"""How long it may take until somebody says how a trial ended that has hung up."""


class Fetching:
    """Stands between whoever hears of replicas and `feed`.

    The report of a trial that goes on to prepare is passed on once its files are here, or cannot
    be had, or the time for that is over. What a trial has measured counts however it ends after
    that: an end is passed on behind its report.
    """

    def __init__(
        self,
        feed: Feed,
        bundles: Bundles,
        tasks: Tasks,
        run_dir: Path,
        find: Callable[[str], Replica | None],
        bindings: Mapping[str, Binding],
    ) -> None:
        """`run_dir` holds the folders of the replicas' sockets; `find` knows a replica by its id,
        `bindings` what those of a pool are given."""
        self._feed = feed
        self._bundles = bundles
        self._tasks = tasks
        self._run_dir = run_dir
        self._find = find
        self._bindings = bindings
        self.limit_s = patience_s
        """How long a trial may take, by the bytes of its bundle."""
        self.news_s = NEWS_S
        self._held: dict[str, tuple[events.Loaded, asyncio.Task[None]]] = {}

    def feed(self, event: events.Event) -> None:
        """Pass on `event`, now or when its files are fetched."""
        if isinstance(event, events.Loaded) and event.report.get(PREPARES) is True:
            binding = self._asked(event.id)
            if binding is not None:
                work = self._fetch(event.id, binding)
                self._held[event.id] = event, self._tasks.spawn(f"fetch from {event.id}", work)
                return
        elif isinstance(event, events.Lost | events.Released) and event.id in self._held:
            self._held[event.id][1].cancel()
            reason = event.reason if isinstance(event, events.Lost) else "it was ended"
            self._let_go(event.id, f"its trial ended while it was prepared: {reason}")
        self._feed(event)

    def _asked(self, id: str) -> Binding | None:
        """What a replica was given that was to prepare its model: a trial's. Others may say that
        they did, too, and would have the server store whatever they like."""
        replica = self._find(id)
        if replica is None or replica.role != "trial":
            return None
        binding = self._bindings.get(replica.pool)
        return binding if binding is not None and binding.spec.prepare else None

    def _let_go(self, id: str, prepared: Prepared | str) -> None:
        """Once: the end of the replica and the end of the fetch may both come."""
        if id not in self._held:
            return
        loaded, _ = self._held.pop(id)
        why_not = prepared if isinstance(prepared, str) else ""
        if why_not:
            log.info("a model is not prepared", replica=id, reason=why_not)
        found = None if why_not else prepared
        self._feed(replace(loaded, report={**loaded.report, PREPARED: found, WHY_NOT: why_not}))

    async def _fetch(self, id: str, binding: Binding) -> None:
        limit_s = self.limit_s(binding.bundle.size)
        path = self._run_dir / id / DATA_SOCKET
        prepared: Prepared | str
        try:
            async with asyncio.timeout(limit_s):
                prepared = await fetch(path, self._bundles, binding)
        except TimeoutError:
            prepared = f"that was not done within {limit_s:.0f} s"
        except ConnectionError as error:
            # Most likely it has died, and whoever says how will cancel this.
            await asyncio.sleep(self.news_s)
            prepared = f"its files could not be fetched: {error}"
        except (FnError, LinkError, OSError) as error:
            prepared = f"its files could not be fetched: {error}"
        except Exception as error:
            # Untold, the deploy would wait until its replica is given up.
            log.exception("what a trial prepared could not be fetched", replica=id)
            prepared = f"its files could not be fetched: {error!r}"
        self._let_go(id, prepared)
