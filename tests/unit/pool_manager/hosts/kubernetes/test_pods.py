"""The table of Pods: what is known, waited for, told once, and swept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.objects import Pod
from pool_manager.driver import Exit
from pool_manager.hosts.kubernetes.ends import BY_SOMEBODY
from pool_manager.hosts.kubernetes.pod_specs import PodOwner
from pool_manager.hosts.kubernetes.pods import Pods
from registry.errors import EngineDown
from registry.tasks import Tasks

OWNER = PodOwner("abcdef0123456789")


def pod(id: str = "a", *, uid: str = "", state: str = "running", node: str = "n1") -> Pod:
    """Return a Pod of a replica."""
    status = [{"name": "replica", "state": {state: {}}}] if state else []
    given = {
        "metadata": {
            "name": f"fn-{id}",
            "uid": uid or f"uid-{id}",
            "labels": {"fngate.dev/replica": id, "fngate.dev/owner": OWNER.id},
        },
        "spec": {"nodeName": node},
        "status": {"containerStatuses": status},
    }
    return msgspec.convert(given, Pod)


class Table:
    """A table whose reflector a test plays."""

    def __init__(self, tmp_path: Any) -> None:
        self.now, self.known = 10.0, {"a", "b"}
        self.tasks = Tasks("test")
        client = KubernetesClient(Access(tmp_path, "localhost", 1))
        self.pods = Pods(client, OWNER, self.known.__contains__, self.tasks, lambda: self.now)
        self.told: list[tuple[str, Exit]] = []
        self.pods.exits.subscribe(lambda id, end: self.told.append((id, end)))

    def listed(self, *pods: Pod) -> None:
        """Play a list."""
        self.pods.on_synced({one.metadata.name: one for one in pods})


@pytest.fixture
async def table(tmp_path: Any) -> AsyncIterator[Table]:
    """A table, closed in the end."""
    made = Table(tmp_path)
    yield made
    await made.tasks.close()


async def test_nothing_is_known_before_the_first_list(table: Table) -> None:
    """Nobody is told that a replica is gone before."""
    with pytest.raises(EngineDown, match="has not listed the Pods yet"):
        table.pods.check()
    table.pods.on_back()
    with pytest.raises(EngineDown):
        table.pods.check()
    table.listed(pod())
    table.pods.check()
    assert table.pods.synced_s == 10.0
    assert [id for id, _ in table.pods.on_node("n1")] == ["a"]


async def test_an_api_server_that_is_away(table: Table) -> None:
    """Its drivers are told; what is known stays."""
    table.listed(pod())
    losses: list[str] = []
    table.pods.engine_losses.subscribe(losses.append)
    table.pods.on_away("no route")
    assert losses == ["no route"]
    with pytest.raises(EngineDown, match="no route"):
        table.pods.check()
    assert table.told == []
    table.pods.on_back()
    table.pods.check()


async def test_an_end_is_told_once(table: Table) -> None:
    """By the container's end, the Pod's, or a list that lacks it."""
    table.listed(pod("a"), pod("b"))
    table.pods.on_changed(pod("a", state="terminated"))
    table.pods.on_changed(pod("a", state="terminated"))
    table.pods.on_removed(pod("a", state="terminated"))
    table.listed()
    table.listed(pod("b"))
    table.listed()
    assert table.told == [("a", Exit("exited with code 0")), ("b", Exit(BY_SOMEBODY, True))]


async def test_a_list_from_before_a_pod_says_nothing_of_it(table: Table) -> None:
    """The answer to its creation came first; only a second list may lack it."""
    table.listed()
    table.pods.made("a", pod("a", state="", node=""))
    table.listed()
    assert table.told == []
    fate = table.pods.fate("a")
    assert fate is not None
    assert fate.gone_s is None
    table.listed()
    assert table.told == [("a", Exit(BY_SOMEBODY, True))]


async def test_an_answer_after_the_events_changes_nothing(table: Table) -> None:
    """A watch may be faster than the answer."""
    table.listed()
    table.pods.on_changed(pod("a"))
    table.pods.made("a", pod("a", state="", node=""))
    fate = table.pods.fate("a")
    assert fate is not None
    assert fate.pod.spec.node_name == "n1"


async def test_a_copy_of_a_pod_is_not_it(table: Table) -> None:
    """Events of another uid end nothing."""
    table.listed(pod("a"))
    table.pods.on_removed(pod("a", uid="another"))
    table.pods.on_changed(pod("a", uid="another", state="terminated"))
    assert table.told == []
    table.pods.on_changed(msgspec.convert({"metadata": {"name": "x"}}, Pod))
    assert len(list(table.pods.on_node("n1"))) == 1
    table.pods.on_removed(pod("a"))
    table.pods.on_changed(pod("a", uid="another", state="terminated"))
    fate = table.pods.fate("a")
    assert fate is not None
    assert (fate.id, fate.is_proven) == ("uid-a", False)


STEPS = (
    "running",
    "waiting",
    "terminated",
    "removed",
    "listed",
    "missing",
    "made",
    "asked",
    "away",
)


@given(some.lists(some.sampled_from(STEPS), max_size=12))
def test_any_order_of_news(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """One end is told at most; and no proof while the last that was seen of a container is that it
    runs, or may be about to."""
    table = Table(tmp_path_factory.getbasetemp())
    state = ""
    for step in steps:
        if step in ("running", "waiting", "terminated"):
            state = step
            table.pods.on_changed(pod("a", state=state))
        elif step == "removed":
            table.pods.on_removed(pod("a", state=state))
        elif step == "listed":
            table.listed(pod("a", state=state))
        elif step == "missing":
            table.listed()
        elif step == "made":
            table.pods.made("a", pod("a", state=""))
        elif step == "asked":
            table.pods.asked("a")
        else:
            table.pods.on_away("away")
        fate = table.pods.fate("a")
        assert len(table.told) <= 1
        assert fate is None or not fate.is_proven or state == "terminated"
        assert bool(table.told) == (fate is not None and fate.end is not None)


async def test_waiting(table: Table) -> None:
    """It ends with the condition, with the time, and with the API server."""
    table.listed(pod("a"))
    gone = asyncio.ensure_future(
        table.pods.wait("a", lambda fate: fate is not None and fate.gone_s is not None, 60.0)
    )
    await asyncio.sleep(0)
    table.pods.on_changed(pod("a"))
    await asyncio.sleep(0)
    assert not gone.done()
    table.pods.on_removed(pod("a", state="terminated"))
    fate = await gone
    assert fate is not None
    assert fate.is_proven
    assert await table.pods.wait("nobody", lambda _: False, 0.001) is None
    away = asyncio.ensure_future(table.pods.wait("b", lambda _: bool(table.pods.why_away), 60.0))
    await asyncio.sleep(0)
    table.pods.on_away("gone")
    await away


async def test_what_is_released_is_forgotten(table: Table) -> None:
    """Nothing of a Pod is kept."""
    table.listed(pod("a"))
    asked = table.pods.asked("a")
    assert asked is not None
    assert asked.is_asked
    table.pods.forget("a")
    assert table.pods.fate("a") is None
    assert table.pods.asked("a") is None
