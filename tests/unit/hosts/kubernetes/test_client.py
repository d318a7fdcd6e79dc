"""Requests of the client of the API server, and what becomes of every kind of answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from hosts.kubernetes.access import Access
from hosts.kubernetes.client import ApiLimits, KubernetesClient, retry_s
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import (
    CLAIMS,
    NODES,
    PODS,
    REVIEWS,
    Metadata,
    Pod,
    TokenReview,
    TokenReviewSpec,
)
from tests.support.operator import until
from tests.support.small_authority import authority
from tests.unit.hosts.kubernetes.conftest import (
    ScriptedApi,
    gives,
    listing,
    pod,
    queries,
    refuses,
    says,
    streams,
    waits,
)

Make = Callable[..., KubernetesClient]
POD = Pod(metadata=Metadata(name="a"))


# What is sent


async def test_an_object_is_got_by_its_name(api: ScriptedApi, make_client: Make) -> None:
    """The request has the token of now, and asks for JSON that is not packed."""
    api.says(gives(pod("a", "7")))

    found = await make_client().get(PODS, "a")

    assert (found.metadata.name, found.metadata.resource_version) == ("a", "7")
    (request,) = api.requests
    assert (request.method, request.path) == ("GET", "/api/v1/namespaces/fngate/pods/a")
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Accept"] == "application/json"
    assert request.headers["Accept-Encoding"] == "identity"
    (api.folder / "token").write_text("another")
    await make_client().get(PODS, "a")
    assert api.requests[-1].headers["Authorization"] == "Bearer another"


async def test_a_pod_that_others_have_made_can_be_read(api: ScriptedApi, make_client: Make) -> None:
    """The Pod of a server has a token of the API server itself; admission may add volumes,
    variables and probes of other kinds than replicas have."""
    container = {
        "name": "server",
        "image": "i",
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"key": "k"}}}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
        "startupProbe": {"exec": {}},
    }
    resource = {"containerName": "server", "resource": "limits.cpu"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [{"path": "cpu", "resourceFieldRef": resource}]}},
        {"downwardAPI": {}},
    ]
    volumes = [{"name": "kube-api-access", "projected": {"sources": sources}}]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "fngate", "uid": "u"}
    metadata = {"name": "fngate-0", "resourceVersion": "7", "ownerReferences": [owner]}
    spec = {"containers": [container], "volumes": volumes}
    api.says(gives({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}))

    found = await make_client().get(PODS, "fngate-0")

    assert [one.kind for one in found.metadata.owner_references] == ["StatefulSet"]


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        (NODES, "n1", "/api/v1/nodes/n1"),
        (CLAIMS, "c", "/apis/resource.k8s.io/v1/namespaces/fngate/resourceclaims/c"),
        (PODS, "../x?y#z", "/api/v1/namespaces/fngate/pods/..%2Fx%3Fy%23z"),
    ],
)
async def test_each_kind_has_its_path(
    api: ScriptedApi, make_client: Make, kind: Any, name: str, path: str
) -> None:
    """Groups and namespaces are parts of it, and no name can leave its place."""
    api.says(gives({"kind": kind.name}))

    await make_client().get(kind, name)

    assert api.requests[0].raw_path == path


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_what_is_no_name_is_not_found(api: ScriptedApi, make_client: Make, name: str) -> None:
    """Such a path would be that of other objects; nothing is sent."""
    with pytest.raises(ApiRefused) as refused:
        await make_client().delete(PODS, name)

    assert refused.value.code == 404
    assert api.requests == []


async def test_an_object_is_made(api: ScriptedApi, make_client: Make) -> None:
    """Kind and version are filled in, empty fields are not sent; a dry run says so."""
    api.says(gives(pod("a", "8"), 201))
    client = make_client()

    made = await client.create(PODS, POD)
    await client.create(PODS, POD, dry_run=True)

    assert made.metadata.uid == "uid-a"
    assert [request.method for request in api.requests] == ["POST", "POST"]
    assert queries(api.requests) == [{}, {"dryRun": "All"}]
    assert api.requests[0].path == "/api/v1/namespaces/fngate/pods"
    assert api.requests[0].headers["Content-Type"] == "application/json"
    assert api.bodies[0] == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


async def test_a_token_is_reviewed(api: ScriptedApi, make_client: Make) -> None:
    """A review is made like an object, and answered in its status."""
    status = {"authenticated": True, "user": {"username": "u", "extra": {"k": ["v"]}}}
    api.says(gives({"kind": "TokenReview", "status": status}, 201))

    review = TokenReview(spec=TokenReviewSpec(token="t", audiences=("fngate",)))
    found = await make_client().create(REVIEWS, review)

    assert found.status.authenticated
    assert found.status.user.extra == {"k": ("v",)}
    assert api.requests[0].path == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert api.bodies[0]["spec"] == {"token": "t", "audiences": ["fngate"]}


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {}),
        ({"uid": "u"}, {"preconditions": {"uid": "u"}}),
        ({"uid": "u", "grace_s": 0}, {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}),
    ],
)
async def test_an_object_is_deleted(
    api: ScriptedApi, make_client: Make, options: dict[str, Any], body: dict[str, Any]
) -> None:
    """Only what is given is sent; a grace of 0 is one."""
    api.says(gives(pod("a")))

    await make_client().delete(PODS, "a", **options)

    assert (api.requests[0].method, api.bodies[0]) == ("DELETE", body)


async def test_a_patch_merges_by_names(api: ScriptedApi, make_client: Make) -> None:
    """A subresource is a part of the path."""
    api.says(gives(pod("a", "9")))

    found = await make_client().patch(PODS, "a", {"spec": {"x": 1}}, subresource="resize")

    assert found.metadata.resource_version == "9"
    (request,) = api.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/fngate/pods/a/resize")
    assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert api.bodies[0] == {"spec": {"x": 1}}


@pytest.mark.parametrize(
    ("limit", "last"), [(4, b"cdef"), (6, b"abcdef"), (100, b"abcdef"), (0, b"")]
)
async def test_the_end_of_an_output_is_read(
    api: ScriptedApi, make_client: Make, limit: int, last: bytes
) -> None:
    """As much of its end as is asked for."""
    api.says(streams(b"ab", b"c", b"def"))

    assert await make_client().log("a", "replica", limit, 1_000_000_000) == last
    assert api.requests[0].path == "/api/v1/namespaces/fngate/pods/a/log"
    since = {"sinceTime": "2001-09-09T01:46:40Z"}
    assert queries(api.requests) == [{"container": "replica", "timestamps": "true", **since}]
    assert "*/*" in api.requests[0].headers["Accept"]


async def test_an_endless_output_is_left(api: ScriptedApi, make_client: Make) -> None:
    """What is read has a limit; what was read then counts."""
    never = asyncio.Event()
    api.says(streams(*[b"x" * 1000] * 20, until=never))

    assert await make_client(log_bytes=10_000).log("a", "replica", 10) == b"x" * 10
    assert "sinceTime" not in api.requests[0].query
    never.set()


async def test_requests_are_counted(api: ScriptedApi, make_client: Make) -> None:
    """By verb and kind, refused and repeated ones too."""
    api.says(gives(pod("a")), gives(listing()), refuses(429, "TooManyRequests"), gives(pod("a")))
    client = make_client(retry_s=0.0)

    await client.get(PODS, "a")
    await client.list(NODES)
    await client.delete(PODS, "a")

    assert client.requests == {("get", "Pod"): 1, ("list", "Node"): 1, ("delete", "Pod"): 2}


async def test_no_proxy_is_used(
    api: ScriptedApi, make_client: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that send other programs to a proxy are ignored."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    api.says(gives(pod("a")))

    assert (await make_client().get(PODS, "a")).metadata.name == "a"


# Answers


async def test_a_refusal_has_the_words_of_the_api(api: ScriptedApi, make_client: Make) -> None:
    """Code, reason and message of its Status, the message in one line."""
    api.says(refuses(403, "Forbidden", 'pods "a" is forbidden:\nexceeded quota'))

    with pytest.raises(ApiRefused, match='pods "a" is forbidden: exceeded quota') as refused:
        await make_client().create(PODS, POD)

    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")


@pytest.mark.parametrize("text", ["404 page not found\n", "[1]", "[" * 10_000, b"\xff{"])
async def test_a_refusal_may_be_no_status(
    api: ScriptedApi, make_client: Make, text: str | bytes
) -> None:
    """So is a kind that the API server does not have."""
    api.says(says(text, 404))

    with pytest.raises(ApiRefused) as refused:
        await make_client().get(PODS, "a")

    assert (refused.value.code, refused.value.reason) == (404, "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refuses(500, "InternalError", "etcd"), "500 InternalError: etcd"),
        (says("bad gateway", 502), "502: bad gateway"),
        (refuses(504, "Timeout", "slow"), "504 Timeout: slow"),
        (says("", 302, Location="https://localhost:1/"), "redirect"),
        (says("", 200), "none of the API's"),
        (says("<html>"), "none of the API's"),
        (says(b"\xff"), "none of the API's"),
        (says("{}"), "an answer that is no Pod: its kind is ''"),
        (gives(listing()), "an answer that is no Pod: its kind is 'PodList'"),
        (says('{"metadata": {"name": 5}}'), "none of the API's"),
        (says('{"metadata":' * 3000), "none of the API's"),
        (says('{"x":' * 3000 + "1" + "}" * 3000), "none of the API's"),
        (says(gzip.compress(b"{}"), Content_Encoding="gzip"), "packed"),
        (says(" " * 70_000), "more than 65536 bytes"),
        (streams(*[b" " * 35_000] * 2), "more than 65536 bytes"),
        (streams(b"{", breaks=True), "."),
    ],
)
async def test_an_unusable_answer_is_none(
    api: ScriptedApi, make_client: Make, answer: Any, words: str
) -> None:
    """It is not known then what became of a write; nothing is sent a second time."""
    api.says(answer)

    with pytest.raises(ApiAway, match=words):
        await make_client(object_bytes=65536).create(PODS, POD)

    assert len(api.requests) == 1


async def test_a_later_answer_is_read_on_a_new_connection(
    api: ScriptedApi, make_client: Make
) -> None:
    """What is left of an answer that was too long is no part of the next one."""
    api.says(says(" " * 5000 + json.dumps(pod("b"))), gives(pod("a")))
    client = make_client(object_bytes=4096)
    with pytest.raises(ApiAway):
        await client.get(PODS, "b")

    assert (await client.get(PODS, "a")).metadata.name == "a"


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("86400", 10.0),
        ("9" * 400, 1.0),
        ("", 1.0),
        ("-1", 1.0),
        ("1e9", 1.0),
        ("nan", 1.0),
        ("\u0663", 1.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 1.0),
    ],
)
def test_retry_after_is_bounded(text: str, wait_s: float) -> None:
    """Seconds are honoured up to a limit; a date would need the API server's clock."""
    assert retry_s(text, ApiLimits()) == wait_s


async def test_too_many_requests_are_repeated(api: ScriptedApi, make_client: Make) -> None:
    """A 429 has changed nothing, so that writes are repeated, too."""
    busy = refuses(429, "TooManyRequests", Retry_After="0")
    api.says(busy, says("try again later", 429), gives(pod("a"), 201))

    made = await make_client(retry_s=0.0).create(PODS, POD)

    assert made.metadata.name == "a"
    assert len(api.requests) == 3
    assert api.bodies[0] == api.bodies[2]


async def test_too_many_requests_end_as_a_refusal(api: ScriptedApi, make_client: Make) -> None:
    """After some repetitions; a wait is never longer than the limit, whatever is asked for."""
    api.says(refuses(429, "TooManyRequests", Retry_After="9999"))

    with pytest.raises(ApiRefused) as refused:
        await make_client(repetitions=2, retry_max_s=0.01).create(PODS, POD)

    assert refused.value.code == 429
    assert len(api.requests) == 3


# Limits


async def test_an_answer_has_a_time(api: ScriptedApi, make_client: Make) -> None:
    """Also one whose bytes come slowly."""
    late = asyncio.Event()
    api.says(waits(late, gives({})), streams(b" ", until=late))
    client = make_client(request_s=0.2)

    for _ in range(2):
        with pytest.raises(ApiAway, match="no answer within"):
            await client.get(PODS, "a")
    late.set()


async def test_a_connection_has_a_time(api: ScriptedApi) -> None:
    """A listener that says nothing is no API server."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = Access(api.folder, "localhost", silent.getsockname()[1])
        client = KubernetesClient(access, ApiLimits(connect_s=0.2))
        with pytest.raises(ApiAway):
            await client.get(PODS, "a")
        await client.close()


async def test_a_port_without_listener_is_away(api: ScriptedApi, make_client: Make) -> None:
    """The reason is the system's."""
    client = make_client()
    await api.stop()

    with pytest.raises(ApiAway, match=f"localhost:{api.port}: Connection refused"):
        await client.get(PODS, "a")


async def test_another_authority_is_no_api_server(api: ScriptedApi, make_client: Make) -> None:
    """The token is not sent to it. After its certificate has been mounted, it is one."""
    other = authority("other")
    await api.stop()
    await api.start(other)
    api.says(gives(pod("a")))
    client = make_client()

    with pytest.raises(ApiAway, match="wrong certificate: "):
        await client.get(PODS, "a")
    assert api.requests == []

    (api.folder / "ca.crt").write_text(other.pem)
    assert (await client.get(PODS, "a")).metadata.name == "a"


async def test_another_name_is_no_api_server(api: ScriptedApi) -> None:
    """The certificate has to be for the host that was dialled."""
    client = KubernetesClient(Access(api.folder, "127.0.0.1", api.port))

    with pytest.raises(ApiAway, match="wrong certificate: "):
        await client.get(PODS, "a")
    await client.close()


async def test_requests_at_the_same_time_are_bounded(api: ScriptedApi, make_client: Make) -> None:
    """Some are sent, some wait, and one more is refused at once."""
    go = asyncio.Event()
    api.says(waits(go, gives(pod("a"))))
    client = make_client(requests=2, waiting=5)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.get(PODS, "a")) for _ in range(5)]
        await until(lambda: len(api.requests) == 2)
        with pytest.raises(ApiAway, match="more than 5 requests"):
            await client.get(PODS, "a")
        assert len(api.requests) == 2
        go.set()

    assert [task.result().metadata.name for task in tasks] == ["a"] * 5


async def test_a_cancelled_request_gives_its_place_back(
    api: ScriptedApi, make_client: Make
) -> None:
    """So does one that timed out."""
    go = asyncio.Event()
    api.says(waits(go, gives({})), waits(go, gives({})), gives(pod("a")))
    client = make_client(requests=1, waiting=1, request_s=0.2)
    with pytest.raises(ApiAway):
        await client.get(PODS, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(client.get(PODS, "a"))
        await until(lambda: len(api.requests) == 2)
        task.cancel()

    assert (await client.get(PODS, "a")).metadata.name == "a"
    go.set()


# Lists


async def test_a_list_is_read_by_pages(api: ScriptedApi, make_client: Make) -> None:
    """All have the selector; the version is the list's."""
    api.says(
        gives(listing(pod("a"), pod("b"), following="more")),
        gives(listing(pod("c"), version="10")),
    )

    objects, version = await make_client(page=2).list(PODS, "fngate.dev/owner=me")

    assert list(objects) == ["a", "b", "c"]
    assert version == "10"
    selected = {"limit": "2", "labelSelector": "fngate.dev/owner=me"}
    assert queries(api.requests) == [selected, selected | {"continue": "more"}]


async def test_an_empty_list_may_be_null(api: ScriptedApi, make_client: Make) -> None:
    """Some API servers write it so."""
    api.says(gives({"metadata": {"resourceVersion": "3"}, "items": None}))

    assert await make_client().list(PODS) == ({}, "3")


async def test_a_list_that_expires_begins_anew(api: ScriptedApi, make_client: Make) -> None:
    """Objects of the expired pages are forgotten with them."""
    expired = refuses(410, "Expired")
    api.says(
        gives(listing(pod("a"), following="x")),
        expired,
        gives(listing(pod("b"), version="11")),
    )

    objects, version = await make_client().list(PODS)

    assert (list(objects), version) == (["b"], "11")
    assert "continue" not in api.requests[2].query


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ((refuses(410, "Expired"),), "expire"),
        ((gives(listing(following="x")),), "longer than 3 pages"),
        ((gives(listing(following="x" * 5000)),), "longer than 3 pages"),
        ((gives(listing(version="")),), "without a resource version"),
        ((gives({"items": [{"metadata": {"name": []}}]}),), "none of the API's"),
        ((says(" " * 9000),), "more than 8192 bytes"),
    ],
)
async def test_a_list_has_an_end(
    api: ScriptedApi, make_client: Make, answers: tuple[Any, ...], words: str
) -> None:
    """Pages, their number and their size have limits."""
    api.says(*answers)

    with pytest.raises(ApiAway, match=words):
        await make_client(pages=3, page_bytes=8192).list(PODS)

    assert len(api.requests) <= 4


async def test_a_refused_list_is_not_repeated(api: ScriptedApi, make_client: Make) -> None:
    """Only what has expired."""
    api.says(refuses(403, "Forbidden"))

    with pytest.raises(ApiRefused):
        await make_client().list(PODS)

    assert len(api.requests) == 1


async def test_a_closed_client_has_no_connections(api: ScriptedApi, make_client: Make) -> None:
    """It may be closed before it was used, and twice."""
    client = make_client()
    await client.close()
    api.says(gives(pod("a")))
    await client.get(PODS, "a")
    await client.close()
    await client.close()


async def test_a_kept_connection_is_used_again(api: ScriptedApi, make_client: Make) -> None:
    """Requests one after the other need one handshake."""
    seen: set[Any] = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        seen.add(request.transport.get_extra_info("peername"))
        return web.json_response(pod("a"))

    api.says(answer)
    client = make_client()
    for _ in range(3):
        await client.get(PODS, "a")

    assert len(seen) == 1
