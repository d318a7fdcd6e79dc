from __future__ import annotations

import io

import pytest

from admin.client import client as clients
from admin.client import routes
from admin.client.client import Answer, ApiError, Client, Payload, Unreachable
from admin.documents.requests import DeployRequest, ScalingRequest
from admin.documents.server import KeyRow
from registry.errors import BadBundle
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import filled

A = "/admin/v1"
SHA = "ab" * 32


@pytest.fixture
def client(api: AdminApi) -> Client:
    return Client(api.url, "k1")


def test_a_list_is_its_items(api: AdminApi, client: Client) -> None:
    """As they were sent, and as documents."""
    key = {"x": 1, **filled(KeyRow, {"id": "k"})}
    api.on("GET", f"{A}/keys", Canned({"items": [key], "next": None}))

    found = client.items(routes.KEYS)

    assert found.sent == {"items": [key]}
    assert [one.id for one in found.value] == ["k"]


def test_one_thing_is_its_document(api: AdminApi, client: Client) -> None:
    """As it was sent, and as a document. Names are put into the path, what is empty stays out of
    the query."""
    api.on("POST", f"{A}/functions/digits/warm", Canned({"x": 1, "revision": "digits@2"}))

    found = client.call(routes.WARM, "digits", wait_s=5, force=False, function="")

    assert found.sent["x"] == 1
    assert found.value.revision == "digits@2"
    assert api.requests[0].query == {"wait": "5"}


def test_a_change_names_what_was_read(api: AdminApi, client: Client) -> None:
    """PATCH sends the ETag that GET returned as If-Match, and what is changed only."""
    api.on("GET", f"{A}/functions/digits", Canned({}, headers={"ETag": '"t"'}))
    api.on("PATCH", f"{A}/functions/digits", Canned({"max": 2}))

    assert client.rescale("digits", ScalingRequest(max=2)).value.max == 2
    (sent,) = api.sent("PATCH")
    assert (sent.headers["If-Match"], sent.json) == ('"t"', {"max": 2})


def test_lists_are_followed_to_their_end(api: AdminApi, client: Client) -> None:
    """A list is read page by page, each from the cursor of the one before."""
    api.on(
        "GET",
        f"{A}/functions",
        Canned({"items": [{"name": "a"}], "next": "b&c"}),
        Canned({"items": [{"name": "b"}], "next": None}),
    )

    assert [one.name for one in client.items(routes.FUNCTIONS).value] == ["a", "b"]
    assert [request.query for request in api.requests] == [{}, {"next": "b&c"}]


def test_a_page_keeps_what_else_was_asked(api: AdminApi, client: Client) -> None:
    """The cursor is added to the query."""
    api.on(
        "GET",
        f"{A}/functions/digits/logs",
        Canned({"items": [], "next": "r2"}),
        Canned({"items": [], "next": None}),
    )

    client.items(routes.LOGS, "digits", lines=5)

    assert [r.query for r in api.requests] == [{"lines": "5"}, {"lines": "5", "next": "r2"}]


def test_a_list_without_end_is_given_up(
    api: AdminApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that never ends is given up."""
    monkeypatch.setattr(clients, "PAGES_MAX", 3)
    api.on("GET", f"{A}/functions", Canned({"items": [], "next": "a"}))

    with pytest.raises(Unreachable, match="does not end after 3 pages"):
        client.items(routes.FUNCTIONS)
    assert len(api.requests) == 3


def test_logs_ask_for_lines(api: AdminApi, client: Client) -> None:
    """The number of log lines is sent in the query."""
    api.on("GET", f"{A}/functions/digits/logs", Canned({"items": []}))

    client.items(routes.LOGS, "digits", lines=7)

    assert api.requests[0].query == {"lines": "7"}


def test_a_name_cannot_leave_its_place(api: AdminApi, client: Client) -> None:
    """A name with slashes or a question mark stays one segment of the path."""
    with pytest.raises(ApiError):
        client.call(routes.FUNCTION, "a/../b?c")

    assert api.requests[0].path == f"{A}/functions/a%2F..%2Fb%3Fc"


def test_a_blob_is_there_or_not(api: AdminApi, client: Client) -> None:
    """For a blob, 200 means present, 404 missing, and other statuses are errors."""
    api.on("HEAD", f"{A}/blobs/{SHA}", Canned(), Canned(status=404), Canned(status=401))

    assert client.has_blob(SHA, 7)
    assert not client.has_blob(SHA, 7)
    with pytest.raises(ApiError, match="401"):
        client.has_blob(SHA, 7)
    assert [request.query for request in api.requests] == [{"size": "7"}] * 3


def test_an_upload_is_streamed_and_reported(api: AdminApi, client: Client) -> None:
    """An upload sends Content-Length and the bytes, and reports progress that adds up to them."""
    api.on("PUT", f"{A}/blobs/{SHA}", Canned(status=201))
    data, sent = b"x" * (2**20 + 3), list[int]()

    client.put_blob(SHA, io.BytesIO(data), len(data), sent.append)

    assert api.requests[0].body == data
    assert api.requests[0].headers["Content-Length"] == str(len(data))
    assert (len(sent), sum(sent)) == (2, len(data))


def test_an_upload_sends_no_more_than_was_said(api: AdminApi, client: Client) -> None:
    """Bytes appended to a file after it was hashed are not sent."""
    api.on("PUT", f"{A}/blobs/{SHA}", Canned(status=201))

    client.put_blob(SHA, io.BytesIO(b"abcdef"), 3, lambda count: None)

    assert api.requests[0].body == b"abc"


def test_a_file_that_shrank_is_refused(api: AdminApi, client: Client) -> None:
    """A file that shrank since it was hashed ends the upload with a reason."""
    api.on("PUT", f"{A}/blobs/{SHA}", Canned(reads=False))

    with pytest.raises(BadBundle, match="2 of 5 bytes missing"):
        client.put_blob(SHA, io.BytesIO(b"abc"), 5, lambda count: None)


def test_a_body_is_sent_without_what_is_not_given(api: AdminApi, client: Client) -> None:
    """So that a server decides about it, also one of an earlier release."""
    api.on("POST", f"{A}/functions/digits/revisions", Canned({"id": "o1"}, 202))

    found = client.submit(routes.DEPLOY, "digits", body=DeployRequest([], trust=True))

    assert found.value.id == "o1"
    assert api.requests[0].json == {"files": [], "trust": True}


def test_an_operation_can_be_waited_for(api: AdminApi, client: Client) -> None:
    """Waiting sends the time to wait and the phase already known."""
    api.on("GET", f"{A}/operations/o1", Canned({"id": "o1"}))

    client.call(routes.OPERATION, "o1", wait_s=20, phase="verify")

    assert api.requests[0].query == {"wait": "20", "phase": "verify"}


def test_a_call_sends_what_it_is_given(api: AdminApi, client: Client) -> None:
    """invoke sends body, content type, Accept and wait budget; it returns the answer and its
    timing."""
    timing = {"Server-Timing": "queue;dur=1", "Content-Type": "application/x-npy"}
    api.on("POST", "/fn/digits@3", Canned(b"npy", headers=timing))

    answer = client.invoke("digits@3", Payload(b"png", "image/png"), accept="x/y", wait_s=2.5)

    sent = api.requests[0]
    assert (sent.body, sent.headers["Content-Type"]) == (b"png", "image/png")
    assert (sent.headers["Accept"], sent.headers["Prefer"]) == ("x/y", "wait=2.5")
    assert answer == Answer(b"npy", "application/x-npy", "queue;dur=1")


def test_a_stranger_is_recognised(api: AdminApi, client: Client) -> None:
    """A success without a JSON object is an error with a text, not a traceback."""
    api.on("GET", "/readyz", Canned(b"<html>"))

    with pytest.raises(
        ApiError, match="This is not an fngate server: GET /readyz: expected a JSON"
    ):
        client.ready()
