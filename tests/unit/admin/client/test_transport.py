from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from admin.client.transport import ApiError, Transport, Unreachable, check, json_object
from tests.support.admin_api import AdminApi, Canned

TIMEOUT_S = 5.0


def test_an_exchange_gives_whatever_came(api: AdminApi) -> None:
    """An exchange returns status, headers and body unchanged, for refusals too."""
    api.on("GET", "/x", Canned(b"abc", status=418, headers={"X-Y": "z"}))

    reply = Transport(api.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S)

    assert (reply.status, reply.headers["X-Y"], reply.body) == (418, "z", b"abc")


def test_a_key_is_a_bearer_token(api: AdminApi) -> None:
    """The key is sent as a bearer token; without a key there is no Authorization header."""
    api.on("GET", "/x", Canned())

    Transport(api.url, "k1").exchange("GET", "/x", None, {}, TIMEOUT_S)
    Transport(api.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S)

    assert [r.headers.get("Authorization") for r in api.requests] == ["Bearer k1", None]


def test_a_request_for_another_program_is_the_same(api: AdminApi) -> None:
    """Bytes as HTTP/1.1 has them, with prefix and key; headers can break no line."""
    endpoint = Transport("http://[::1]:8080/gate/", "k1").endpoint

    sent = endpoint.encode("POST", "/x", {"X-Y": "z", "content-length": "9"}, b"ab")
    named = endpoint.encode("GET", "/x", {"X-Y": "z", "host": "h"}, b"")

    assert (endpoint.host, endpoint.port, endpoint.is_secure) == ("::1", 8080, False)
    assert sent.split(b"\r\n") == [
        *(b"POST /gate/x HTTP/1.1", b"Host: [::1]:8080", b"Authorization: Bearer k1"),
        *(b"X-Y: z", b"Content-Length: 2", b"", b"ab"),
    ]
    assert named.split(b"\r\n")[1] == b"host: h"
    assert named.lower().count(b"host: ") == 1
    assert b"Authorization" not in Transport(api.url, None).endpoint.encode("GET", "/", {}, b"")
    assert Transport("https://h", None).endpoint.port == 443
    with pytest.raises(ValueError, match="printable"):
        endpoint.encode("GET", "/", {"X": "a\r\nY: b"}, b"")


def test_a_prefix_stays_before_every_path(api: AdminApi) -> None:
    """The path prefix of the server's address is kept."""
    api.on("GET", "/fn-gate/x", Canned({"a": 1}))

    reply = Transport(f"{api.url}/fn-gate/", None).exchange("GET", "/x", None, {}, TIMEOUT_S)

    assert reply.body == b'{"a": 1}'


def test_a_refused_upload_gives_the_refusal(api: AdminApi) -> None:
    """A refusal sent before the body was read is returned."""
    api.on("PUT", "/x", Canned({"title": "The body is too large"}, status=413, reads=False))

    reply = Transport(api.url, None).exchange("PUT", "/x", b"abc", {}, TIMEOUT_S)

    assert reply.status == 413


def test_connections_may_be_made_by_others(api: AdminApi) -> None:
    """`dial` gets host and port and its socket is used; its errors pass unchanged."""
    api.on("GET", "/x", Canned({"a": 1}))
    dialled: list[tuple[str, int]] = []

    def dial(host: str, port: int) -> socket.socket:
        dialled.append((host, port))
        if port != 80:
            raise Unreachable("no way")
        return socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])))

    reply = Transport("http://far", None, dial).exchange("GET", "/x", None, {}, TIMEOUT_S)
    with pytest.raises(Unreachable, match="no way"):
        Transport("http://far:9", None, dial).exchange("GET", "/x", None, {}, TIMEOUT_S)

    assert reply.body == b'{"a": 1}'
    assert dialled == [("far", 80), ("far", 9)]
    assert api.requests[0].headers["Host"] == "far"


def test_exchanges_of_a_block_share_a_connection(api: AdminApi) -> None:
    """One connection serves the exchanges of `kept_connection`, also uploads, and a new one follows
    where the server has closed it or has not read everything; each is verified before its use."""
    api.on("GET", "/x", Canned({"a": 1}))
    api.on("PUT", "/x", Canned({}))
    api.on("PUT", "/refused", Canned({}, status=413, reads=False))
    verified: list[socket.socket] = []
    transport = Transport(api.url, None, verify=verified.append)

    with transport.kept_connection():
        for _ in range(3):
            transport.exchange("HEAD", "/x", None, {}, TIMEOUT_S)
            transport.exchange("PUT", "/x", iter([b"ab", b"c"]), {"Content-Length": "3"}, TIMEOUT_S)
        assert len(verified) == 1
        transport.exchange("PUT", "/refused", b"abc", {}, TIMEOUT_S)
        transport.exchange("GET", "/x", None, {}, TIMEOUT_S)
        assert len(verified) == 2
        verified[-1].shutdown(socket.SHUT_RDWR)  # as a server that waited for too long
        transport.exchange("GET", "/x", None, {}, TIMEOUT_S)
        api.on("GET", "/x", Canned(is_cut=True), Canned({"a": 1}))
        transport.exchange("GET", "/x", None, {}, TIMEOUT_S)
        assert len(verified) == 4
    transport.exchange("GET", "/x", None, {}, TIMEOUT_S)

    assert len(verified) == 5
    assert {each.fileno() for each in verified} == {-1}


def test_encryption_is_not_put_into_encryption() -> None:
    """`dial` is refused for https://, since its transport is encrypted already."""
    with pytest.raises(ValueError, match="expected http://"):
        Transport("https://far", None, lambda _host, _port: socket.socket())


def test_a_closed_port_is_unreachable(api: AdminApi) -> None:
    """A closed port is an error that names the server."""
    free = AdminApi()
    free.close()

    with pytest.raises(Unreachable, match=f"{free.url} does not answer: .*refused"):
        Transport(free.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S)


def test_a_broken_connection_is_unreachable(api: AdminApi) -> None:
    """A connection that closes without an answer is an error."""
    api.on("GET", "/x", Canned(is_cut=True))

    with pytest.raises(Unreachable, match="does not answer"):
        Transport(api.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S)


def test_an_error_of_the_body_is_its_own(api: AdminApi) -> None:
    """An error raised by the body's iterator passes unchanged."""

    def body() -> Iterator[bytes]:
        yield b"a"
        raise KeyError("mine")

    api.on("PUT", "/x", Canned(reads=False))

    with pytest.raises(KeyError, match="mine"):
        Transport(api.url, None).exchange("PUT", "/x", body(), {"Content-Length": "2"}, TIMEOUT_S)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://host", "http://", "http://me:pw@host", "http://host:99999"]
)
def test_a_wrong_address_is_refused(url: str) -> None:
    """An invalid address is a ValueError at once."""
    with pytest.raises(ValueError, match=r"(?i)url|port"):
        Transport(url, None)


@pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
def test_a_key_that_no_header_holds_is_refused(key: str) -> None:
    """A key that is not printable ASCII is refused."""
    with pytest.raises(ValueError, match="key: expected printable ASCII"):
        Transport("http://localhost", key)


def test_a_refusal_carries_its_problem(api: AdminApi) -> None:
    """The error has the problem document, its code, and a text with expected and got."""
    problem = {"title": "Bad", "detail": "wrong", "code": "bad_input", "expected": "1", "got": "2"}
    api.on("GET", "/x", Canned(problem, status=400))

    with pytest.raises(ApiError) as caught:
        check(Transport(api.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S))

    assert caught.value.sent == problem
    assert (caught.value.status, caught.value.code) == (400, "bad_input")
    assert str(caught.value) == "Bad: wrong\n  expected: 1\n  got: 2"


def test_a_detail_is_not_repeated() -> None:
    """Expected and got are not repeated if the detail names them."""
    problem = {"title": "Bad", "detail": "expected 1, got 2", "expected": "1", "got": "2"}

    assert str(ApiError(400, problem)) == "Bad: expected 1, got 2"


def test_a_refusal_without_a_problem_is_told_by_its_status(api: AdminApi) -> None:
    """A refusal without a problem document gets one from its status and the start of its body."""
    api.on("GET", "/x", Canned(b"<h1>no</h1>", status=502, headers={"Retry-After": "7"}))

    with pytest.raises(ApiError, match="HTTP 502 Bad Gateway: <h1>no</h1>") as caught:
        check(Transport(api.url, None).exchange("GET", "/x", None, {}, TIMEOUT_S))

    assert caught.value.problem.retry_after_s == 7
    assert caught.value.code == ""


@pytest.mark.parametrize("body", [b"", b"[1]", b"no", b"\xff", b"[" * 100_000])
def test_only_an_object_is_an_object(body: bytes) -> None:
    """A body that is not a JSON object gives None."""
    assert json_object(body) is None


def test_an_answer_can_be_read_as_it_comes(api: AdminApi) -> None:
    """A streamed answer has its head first, then its pieces; a refusal raises its problem."""
    api.on("GET", "/x", Canned(b"abc", headers={"X-Y": "z"}))
    api.on("GET", "/y", Canned({"title": "No", "detail": "not yours"}, status=403))
    transport = Transport(api.url, "k1")

    with transport.open("/x", {"Accept": "a/b"}, TIMEOUT_S) as (reply, pieces):
        assert (reply.status, reply.headers["X-Y"]) == (200, "z")
        assert b"".join(pieces) == b"abc"
    with pytest.raises(ApiError, match="not yours"), transport.open("/y", {}, TIMEOUT_S):
        pass

    assert api.requests[0].headers["Accept"] == "a/b"
    assert api.requests[0].headers["Authorization"] == "Bearer k1"


def test_a_stream_arrives_piece_by_piece() -> None:
    """A piece is passed on before the next one is sent, and the end before the connection's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        accepted: list[socket.socket] = []

        def dial(_host: str, _port: int) -> socket.socket:
            client = socket.create_connection(listening.getsockname())
            accepted.append(listening.accept()[0])
            accepted[0].sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            return client

        with Transport(url, None, dial).stream("GET", "/x", None, {}, TIMEOUT_S) as (reply, pieces):
            assert reply.status == 200
            for text in (b"one", b"two"):
                accepted[0].sendall(b"3\r\n" + text + b"\r\n")
                assert next(pieces) == text
            accepted[0].sendall(b"0\r\n\r\n")
            assert list(pieces) == []
        accepted[0].close()


def test_a_stream_that_ends_early_is_an_error() -> None:
    """A connection that ends within a chunked body is no end of the answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        accepted: list[socket.socket] = []

        def dial(_host: str, _port: int) -> socket.socket:
            client = socket.create_connection(listening.getsockname())
            accepted.append(listening.accept()[0])
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            accepted[0].sendall(head + b"3\r\none\r\n")
            accepted[0].shutdown(socket.SHUT_WR)
            return client

        with Transport(url, None, dial).stream("GET", "/x", None, {}, TIMEOUT_S) as (_, pieces):
            assert next(pieces) == b"one"
            with pytest.raises(Unreachable, match="the answer was cut off"):
                next(pieces)
        accepted[0].close()
