"""A real server in the double of a cluster, whose Pods are real processes: calls, faults, restarts.

The tests share one server, and are in an order in which none disturbs the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support import models
from tests.support.caller import Caller
from tests.support.dial_in.places import can_open_networks
from tests.support.in_cluster import InCluster, are_up, cluster, id_of, states
from tests.support.kubernetes.double import NodePlan
from tests.support.kubernetes.runtime import Image
from tests.support.kubernetes.store import Json
from tests.support.leaks import Leaks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

ROWS = {"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}
NODES = (NodePlan("n1"), NodePlan("n2"))
ON = 'schema = 1\n[device]\nhost = {{ node = "{}" }}\n'
STREAMER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"2\\r\\n%d\\n\\r\\n" % number)
            self.wfile.flush()
        self.wfile.write(b"0\\r\\n\\r\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
STREAMS = "registry.example/streams:1"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    images = {STREAMS: Image(command=("python3", "-c", STREAMER))}
    with cluster(tmp_path_factory.mktemp("t"), NODES, images) as made:
        yield made


@pytest.fixture
async def caller(scene: InCluster, leaks: Leaks) -> AsyncIterator[Caller]:
    for text in ("process ", "pidfd", "pipe:", "socket:"):
        leaks.exclude(text, reason="of the double's Pods, which outlive the test")
    async with scene.caller() as made:
        await made.until(lambda: are_up(made))
        yield made


async def right(caller: Caller, name: str) -> bool:
    """Whether a call is answered, and rightly."""
    answer = await caller.call(name, ROWS)
    assert answer.status == 200, answer.body
    return bool(answer.json()["outputs"]["y"] == [[2.0, 3.0, 4.0, 5.0]])


async def deployed(caller: Caller, folder: Path, name: str, node: str, **more: object) -> None:
    """Deploy a model to a node, with a trial in a Pod there."""
    await caller.deploy(models.add_one(folder), name=name, manifest=ON.format(node), **more)


async def asleep(caller: Caller, scene: InCluster, name: str) -> None:
    """Put a function to sleep; return when its Pods are gone."""
    await caller.admin("POST", f"/functions/{name}/sleep")

    async def is_so() -> bool:
        there = scene.ask(lambda double: double.pods())
        return not any(_is_of(scene, one, name) for one in there)

    await caller.until(is_so)


def _is_of(scene: InCluster, pod: dict[str, object], name: str) -> bool:
    return pod in scene.pods(name)


def counted(scene: InCluster) -> Counter[tuple[str, str]]:
    """Return the requests that the API server has had so far, but for watches."""
    counts = scene.ask(lambda double: Counter(double.api.counts))
    return Counter({key: count for key, count in counts.items() if key[0] != "watch"})


async def test_a_wake_writes_one_pod(caller: Caller, scene: InCluster, tmp_path: Path) -> None:
    """A deploy runs its trial in a Pod. A cold call writes one Pod, and reviews one token; warm
    calls write nothing and ask nothing, nor do functions that sleep."""
    await deployed(caller, tmp_path, "one", "n1")
    await caller.until(lambda: nothing_runs(scene))
    before = counted(scene)

    assert await right(caller, "one")
    woken = counted(scene) - before
    for _ in range(100):
        assert await right(caller, "one")

    assert woken == {("create", "pods"): 1, ("create", "tokenreviews"): 1}
    assert counted(scene) - before == woken
    [pod] = scene.pods("one")
    assert pod["spec"]["nodeName"] == "n1"


async def nothing_runs(scene: InCluster) -> bool:
    """Whether the API server has no Pod of the server."""
    return not scene.ask(lambda double: double.pods())


async def test_two_hundred_calls_at_once(caller: Caller, scene: InCluster) -> None:
    """All are held by a function without a replica, and answered by one Pod."""
    await asleep(caller, scene, "one")

    answers = await asyncio.gather(*(right(caller, "one") for _ in range(200)))

    assert all(answers)
    assert len(scene.pods("one")) == 1


async def test_a_killed_process_costs_no_call(caller: Caller, scene: InCluster) -> None:
    """Calls during the kill are answered by another Pod, and the first one is deleted."""
    assert await right(caller, "one")
    [pod] = scene.pods("one")
    calls = [asyncio.create_task(right(caller, "one")) for _ in range(50)]

    scene.ask(lambda double: double.kill(pod))
    answers = await asyncio.gather(*calls)

    assert all(answers)
    assert await right(caller, "one")
    await caller.until(lambda: is_gone(scene, pod))


@pytest.mark.parametrize("grace_s", [None, 0], ids=["deleted", "deleted by force"])
async def test_a_stranger_deletes_a_pod(
    caller: Caller, scene: InCluster, grace_s: int | None
) -> None:
    """That is an eviction, no failure of the function: the next call is answered elsewhere."""
    assert await right(caller, "one")
    [pod] = scene.pods("one")

    scene.ask(lambda double: double.delete(pod, grace_s))
    await caller.until(lambda: is_replaced(caller, scene, pod))

    why = (await caller.admin("GET", "/functions/one/why")).json()
    assert not any("backs off" in note["text"] for note in why["decisions"]), why
    assert why["state"] != "failing"


async def is_gone(scene: InCluster, pod: Json) -> bool:
    """Whether the API server has a Pod no more."""
    names = [one["metadata"]["name"] for one in scene.ask(lambda double: double.pods())]
    return pod["metadata"]["name"] not in names


async def is_replaced(caller: Caller, scene: InCluster, pod: Json) -> bool:
    """Whether a call is answered by another Pod than this one, which is gone."""
    assert await right(caller, "one")
    return await is_gone(scene, pod) and bool(scene.pods("one"))


async def test_the_api_server_is_away(caller: Caller, scene: InCluster) -> None:
    """Warm functions go on meanwhile, and a function without a replica is answered once it is
    back."""
    await deployed(caller, scene.folder("cold"), "cold", "n2")
    assert await right(caller, "one")
    scene.do(scene.double.api.close())
    await caller.until(lambda: has_reason(caller, "does not answer"))

    waiting = asyncio.create_task(right(caller, "cold"))
    for _ in range(50):
        assert await right(caller, "one")
    assert not waiting.done()
    scene.do(scene.double.api.reopen())

    assert await waiting
    await caller.until(lambda: are_up(caller))


async def has_reason(caller: Caller, words: str) -> bool:
    """Whether every host of the cluster says these words."""
    rows = (await caller.admin("GET", "/hosts")).json()["items"]
    mine = [row for row in rows if row["name"].startswith("k/")]
    return bool(mine) and all(words in row["reason"] for row in mine)


async def test_a_node_is_cut_off_and_healed(caller: Caller, scene: InCluster) -> None:
    """Its host becomes unreachable, the other one serves on; after the cut it is used again, and no
    Pod of before it is left."""
    assert await right(caller, "one")
    assert await right(caller, "cold")

    scene.do(scene.double.cut("n1"))
    await caller.until(lambda: is_state(caller, "n1", "unreachable"))
    assert await right(caller, "cold")
    scene.do(scene.double.heal("n1"))
    await caller.until(lambda: are_up(caller))

    assert await right(caller, "one")
    assert len(scene.pods("one")) == 1


async def is_state(caller: Caller, node: str, state: str) -> bool:
    """Whether the host of a node is in a state."""
    return (await states(caller)).get(node) == state


async def test_a_server_is_killed(caller: Caller, scene: InCluster) -> None:
    """The next one adopts its Pods: the same Pods answer, and no other one is made or left."""
    assert await right(caller, "one")
    assert await right(caller, "cold")
    before = {one["metadata"]["uid"] for one in scene.ask(lambda double: double.pods())}

    await asyncio.to_thread(scene.server.kill)
    scene.set("FN_STANDBYS", "1")
    await asyncio.to_thread(scene.server.start)
    async with scene.caller() as again:
        await again.until(lambda: are_up(again))
        assert await right(again, "one")
        assert await right(again, "cold")

    uids = {one["metadata"]["uid"] for one in scene.ask(lambda double: double.pods())}
    assert before <= uids


async def test_a_standby_becomes_a_replica(caller: Caller, scene: InCluster) -> None:
    """A cold call where a standby waits makes no Pod for itself, and resizes none."""
    await asleep(caller, scene, "one")
    await caller.until(lambda: has_standby(scene, "n1"))
    [pod] = scene.standbys("n1")
    before = counted(scene)

    assert await right(caller, "one")
    woken = counted(scene) - before

    assert scene.pods("one") == [scene.ask(lambda double: double.pod(pod["metadata"]["name"]))]
    assert woken["patch", "pods"] == 0
    assert woken["create", "pods"] <= 1  # of the standby in its place


async def has_standby(scene: InCluster, node: str) -> bool:
    """Whether a standby on a node runs, and has enrolled."""
    found = scene.standbys(node)
    return len(found) == 1 and scene.record(id_of(found[0])).get("data", "") != "tls://:7443"


async def test_a_tenant_preempts_an_idle_replica(
    caller: Caller, scene: InCluster, tmp_path: Path
) -> None:
    """A Pod of a higher priority gets its place; the next call is answered on the other node, where
    the first one has no room, and that counts as no failure."""
    manifest = 'schema = 1\n[device]\nhost = { cluster = "k" }\n'
    await caller.deploy(models.add_one(tmp_path), name="any", manifest=manifest)
    assert await right(caller, "any")
    [pod] = scene.pods("any")
    node = pod["spec"]["nodeName"]

    scene.ask(lambda double: double.tenant("greedy", node, {"cpu": "3900m"}, "tenant-high"))
    await caller.until(lambda: is_gone(scene, pod))
    assert await right(caller, "any")

    [other] = scene.pods("any")
    assert other["spec"]["nodeName"] != node
    scene.ask(lambda double: double.delete(double.pod("greedy", "tenant"), 0))


async def test_an_image_streams(caller: Caller, scene: InCluster) -> None:
    """A server function of an image is a Pod with a sidecar, pulled by the kubelet."""
    text = f'schema = 1\n[server]\nimage = "{STREAMS}"\nport = 8000\nstop_grace_s = 1\n'
    text += '[device]\nhost = { node = "n1" }\n'
    await caller.deploy({"function.toml": text.encode(), "notes": b"x"}, name="streams")

    answer = await caller.get("/fn/streams/")

    assert (answer.status, answer.body) == (200, b"0\n1\n2\n")
    [pod] = scene.pods("streams")
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["sidecar"]


async def test_a_command_is_refused(caller: Caller) -> None:
    """A deploy says that no host of the cluster runs commands."""
    text = b'schema = 1\n[server]\ncommand = ["serve", "${PORT}"]\n[device]\n'
    text += b'host = { node = "n1" }\n'

    answer = await caller.try_deploy({"function.toml": text, "notes": b"x"}, name="command")

    assert answer.status >= 400, answer.body
    assert "command" in answer.problem["detail"]


async def test_a_node_is_cordoned(caller: Caller, scene: InCluster) -> None:
    """Its replicas drain, and it is used again afterwards."""
    assert await right(caller, "one")
    scene.ask(lambda double: double.cordon("n1"))
    await caller.until(lambda: is_state(caller, "n1", "draining"))
    await caller.until(lambda: has_none(scene, "one"))

    scene.ask(lambda double: double.cordon("n1", is_cordoned=False))
    await caller.until(lambda: are_up(caller))

    assert await right(caller, "one")


async def has_none(scene: InCluster, name: str) -> bool:
    """Whether a function has no Pod."""
    return not scene.pods(name)


async def test_a_node_goes_and_another_joins(caller: Caller, scene: InCluster) -> None:
    """A deleted node is no host any more; a new one is one."""
    assert await right(caller, "cold")
    scene.do(scene.double.remove_node("n2"))
    await caller.until(lambda: is_missing(caller, "n2"))
    scene.ask(lambda double: double.add_node(NodePlan("n3")))
    await caller.until(lambda: is_state(caller, "n3", "up"))


async def is_missing(caller: Caller, node: str) -> bool:
    """Whether a node is no host."""
    return node not in await states(caller)


async def test_the_cluster_is_removed(caller: Caller, scene: InCluster) -> None:
    """Its replicas drain, then the server has left nothing there."""
    assert await right(caller, "one")

    answer = await caller.admin("DELETE", "/hosts/k")
    await caller.until(lambda: is_forgotten(caller))

    assert answer.status in (200, 202), answer.body
    assert await nothing_runs(scene)


async def is_forgotten(caller: Caller) -> bool:
    """Whether the server has no host of the cluster."""
    return await states(caller) == {}
