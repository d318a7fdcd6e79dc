"""Server functions of images in the double of a cluster: files, secrets, and the end of one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.caller import Caller
from tests.support.dial_in.places import can_open_networks
from tests.support.in_cluster import InCluster, are_up, cluster
from tests.support.kubernetes.double import NodePlan
from tests.support.kubernetes.runtime import Image
from tests.support.kubernetes.store import SECRETS
from tests.support.leaks import Leaks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not can_open_networks(), reason="needs root and network namespaces"),
]

PROGRAM = """
import http.server, json, os
with open("/function/words.txt") as file:
    WORDS = file.read()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        there = {}
        for path in ("/cache", "/dev/shm", "/tmp", "/function", "/", "/run/fngate"):
            try:
                open(path + "/probe", "w").close()
                there[path] = True
            except OSError:
                there[path] = False
        body = json.dumps({"words": WORDS, "key": os.environ["KEY"], "uid": os.getuid(),
            "there": there, "port": os.environ["PORT"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
IMAGE = "registry.example/words:1"
MANIFEST = f"""
schema = 1
[device]
host = {{ cluster = "k" }}
[server]
image = "{IMAGE}"
port = 8000
user = "20005:20005"
writable = {{ "/cache" = 16 }}
[server.secrets]
KEY = "key"
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InCluster]:
    images = {IMAGE: Image(command=("python3", "-c", PROGRAM))}
    with cluster(tmp_path_factory.mktemp("t"), (NodePlan("n1"),), images) as made:
        yield made


@pytest.fixture
async def caller(scene: InCluster, leaks: Leaks) -> AsyncIterator[Caller]:
    for text in ("cat", "python", "pidfd", "pipe:", "socket:", "asyncio_"):
        leaks.exclude(text, reason="of the double's Pods, which outlive the test")
    async with scene.caller() as made:
        await made.until(lambda: are_up(made))
        yield made


async def test_a_server_with_files_and_a_secret(caller: Caller, scene: InCluster) -> None:
    """It starts once its files are there, reads its secret, and writes where it may; neither the
    Pod nor the log of a replica has the secret's value."""
    answer = await caller.admin("POST", "/secrets", {"name": "key", "value": "hunter2"})
    assert answer.status < 300, answer.body
    await caller.deploy({"words.txt": b"hello"}, name="words", manifest=MANIFEST)
    answer = await caller.request("GET", "/fn/words/")
    assert answer.status == 200, answer.body
    said = answer.json()
    assert (said["words"], said["key"], said["uid"]) == ("hello", "hunter2", 20005)
    assert said["there"] == {
        "/cache": True,
        "/dev/shm": True,
        "/tmp": True,
        "/function": False,
        "/": False,
        "/run/fngate": False,
    }
    [pod] = scene.pods("words")
    assert "hunter2" not in json.dumps(pod)


async def test_a_server_leaves_nothing(caller: Caller, scene: InCluster) -> None:
    """With its Pod goes its Secret; the next call makes both anew."""
    await caller.admin("POST", "/functions/words/sleep")

    async def is_gone() -> bool:
        return scene.ask(lambda double: not (double.pods() or [*double.store.every(SECRETS)]))

    await caller.until(is_gone)
    before = scene.ask(lambda double: Counter(double.api.counts))
    assert (await caller.request("GET", "/fn/words/")).status == 200
    writes = scene.ask(lambda double: Counter(double.api.counts)) - before
    assert {key: count for key, count in writes.items() if key[0] == "create"} == {
        ("create", "secrets"): 1,
        ("create", "pods"): 1,
        ("create", "tokenreviews"): 1,
    }
