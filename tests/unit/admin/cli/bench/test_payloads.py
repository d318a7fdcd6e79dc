"""Which body a load sends, from a sample or a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from admin.cli.bench.payloads import (
    FILE_MAX,
    Described,
    Request,
    Source,
    checked_requests,
    describe,
)
from admin.cli.requests import Wanted
from admin.client.client import ApiError, Client
from runtime_image.contract.model import InputRule
from runtime_image.contract.samples import SampleRequest
from tests.support.admin_api import AdminApi, Canned

FUNCTION = "/admin/v1/functions/f"
SAMPLE = f"{FUNCTION}/sample"
TENSORS = {
    "kind": "tensors",
    "inputs": [{"name": "x", "dtype": "FP32", "shape": [-1, 2]}],
    "outputs": [],
}
BATCHED = Described("tensors", TENSORS, {}, is_zeros=False)
BODY = {"inputs": {"x": [[1, 2], [3, 4]]}}


@pytest.fixture
def client(api: AdminApi) -> Client:
    """A client of a server with one sample."""
    api.on("GET", SAMPLE, Canned(BODY))
    return Client(api.url, "k")


def made(client: Client, described: Described, *batches: int, **source: Any) -> dict[int, Request]:
    """The requests by batch."""
    return checked_requests(client, "f@2", described, Source(**source), batches)


def test_a_sample_becomes_binary_tensors(api: AdminApi, client: Client) -> None:
    """As it is, and with the wanted rows; a revision is called by its number."""
    api.on("GET", "/admin/v1/functions/f%402/sample", Canned(BODY))

    [(batch, as_is)] = made(client, BATCHED).items()
    several = made(client, BATCHED, 1, 5)

    assert (batch, as_is.rows, as_is.path, as_is.method) == (0, 2, "/fn/f@2", "POST")
    assert as_is.headers["Content-Type"] == "application/octet-stream"
    assert [(key, one.rows) for key, one in several.items()] == [(1, 1), (5, 5)]
    assert len(several[5].body) > len(several[1].body)
    assert json.loads(made(client, BATCHED, 1, is_json=True)[1].body) == {
        "inputs": {"x": [[1.0, 2.0]]}
    }


def test_zeros_are_not_downloaded(api: AdminApi, client: Client) -> None:
    """A function without a sample is called with zeros of any type."""
    described = Described("tensors", TENSORS, {}, is_zeros=True)
    assert made(client, described, 3)[3].rows == 3
    assert api.requests == []


def test_a_file_is_sent_unchanged(api: AdminApi, client: Client, tmp_path: Path) -> None:
    """Unless rows are wanted; its type follows from its suffix or an option."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(BODY))

    [plain] = made(client, BATCHED, file=path).values()
    [typed] = made(client, BATCHED, file=path, media="image/png").values()

    assert (plain.body, plain.rows) == (path.read_bytes(), 0)
    assert plain.headers == {"Content-Type": "application/json"}
    assert (typed.headers["Content-Type"], typed.rows) == ("image/png", 1)
    assert made(client, BATCHED, 3, file=path)[3].rows == 3
    assert api.requests == []


def test_a_server_gets_its_first_sample(api: AdminApi, client: Client) -> None:
    """Method, path, headers, body and expected status."""
    sample = SampleRequest("/a b", "PUT", {"X": "1"}, "t", 201)
    described = Described("http", {"kind": "http"}, {}, is_zeros=False, sample=sample)
    api.on("GET", "/admin/v1/functions/f%402/sample", Canned(b"text"))

    [request] = made(client, described).values()

    assert (request.method, request.path, request.status) == ("PUT", "/fn/f@2/a%20b", 201)
    assert request.headers == {"X": "1", "Content-Type": "application/octet-stream"}
    assert (request.body, request.rows) == (b"text", 1)
    [plain] = made(client, Described("http", {}, {}, is_zeros=False)).values()
    assert (plain.method, plain.path, plain.body) == ("GET", "/fn/f@2/", b"")


def test_a_server_gets_the_request_of_options(client: Client, tmp_path: Path) -> None:
    """With any status below 400, whatever the sample's; a file is read whole. Headers alone come
    to the sample, instead of its own."""
    sample = SampleRequest("/a", headers={"x": "1", "y": "2"}, status=201)
    described = Described("http", {"kind": "http"}, {}, is_zeros=False, sample=sample)
    (tmp_path / "q.json").write_bytes(b"{}")
    wanted = Wanted("/b?c=d e", None, ("X: 3", "Host: h"), f"@{tmp_path / 'q.json'}")

    [request] = made(client, described, wanted=wanted).values()
    [sampled] = made(client, described, wanted=Wanted(headers=("X: 3",))).values()

    assert (request.method, request.path, request.status) == ("POST", "/fn/f@2/b?c=d%20e", 0)
    assert (request.body, request.form) == (b"{}", "POST /b?c=d e")
    assert request.headers["Content-Type"] == "application/json"
    head = client.endpoint.encode(request.method, request.path, request.headers, request.body)
    assert [line for line in head.split(b"\r\n") if line.startswith(b"Host")] == [b"Host: h"]
    assert (sampled.path, sampled.status) == ("/fn/f@2/a", 201)
    assert sampled.headers == {"y": "2", "X": "3"}


def test_the_body_of_a_request_has_a_bound(client: Client, tmp_path: Path) -> None:
    """Nothing is sent of a larger file."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(FILE_MAX + 1)
    wanted = Wanted(body=f"@{tmp_path / 'large'}")

    with pytest.raises(typer.BadParameter, match="at most 268435456 bytes") as caught:
        made(client, Described("http", {}, {}, is_zeros=False), wanted=wanted)
    assert caught.value.param_hint == "-d"


@pytest.mark.parametrize(
    ("kind", "batches", "source", "option"),
    [
        ("http", (2,), {}, "-b"),
        ("json", (2,), {}, "-b"),
        ("http", (), {"is_json": True}, "--json-inputs"),
        ("bytes", (), {"is_json": True}, "--json-inputs"),
        ("http", (), {"file": Path("x")}, "--input"),
        ("json", (), {"file": Path(__file__), "media": "a\r\nb"}, "--type"),
        ("tensors", (), {"file": Path("/none/x.json")}, "--input"),
        ("tensors", (), {"wanted": Wanted("/")}, "--path"),
        ("json", (), {"wanted": Wanted(method="PUT")}, "-X"),
        ("bytes", (), {"wanted": Wanted(headers=("A: b",))}, "-H"),
        ("tensors", (), {"wanted": Wanted(body="")}, "-d"),
        ("tensors", (9,), {"file": Path(__file__)}, "-b"),
    ],
)
def test_unsuitable_inputs_are_refused(
    client: Client, kind: str, batches: tuple[int, ...], source: dict[str, Any], option: str
) -> None:
    """The error names the option."""
    described = Described(kind, TENSORS, {}, is_zeros=False)
    with pytest.raises(typer.BadParameter) as caught:
        made(client, described, *batches, **source)
    assert caught.value.param_hint == option
    assert not str(caught.value).endswith(")")  # as a tuple does


def test_a_key_without_read_may_send_a_file(api: AdminApi) -> None:
    """The public description suffices; other refusals are reported."""
    api.on("GET", "/fn/f", Canned({"signature": TENSORS}))
    api.on(
        "GET",
        FUNCTION,
        Canned({"code": "wrong_scope"}, 403),
        Canned({"code": "no_key"}, 401),
        Canned({"inputs": {"x": {"kind": "image"}}, "sample": "zeros"}),
    )
    client = Client(api.url, "k")

    assert describe(client, "f") == BATCHED
    with pytest.raises(ApiError):
        describe(client, "f")
    rules = {"x": InputRule("image")}
    assert describe(client, "f") == Described("tensors", TENSORS, rules, is_zeros=True)
