"""Tests of the tables of server functions in function.toml."""

from __future__ import annotations

from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest import Manifest, overrides, parse_manifest
from registry.model.functions import ExchangeLimits, Health, Limits, Scaling
from registry.model.revisions import DeviceNeed
from registry.model.servers import PathRules, ServerSettings
from runtime_image.contract.samples import SampleRequest

FILES = ["app.py", "question.json", "run/start.sh", "run/x.py"]
SHORT = 'schema = 1\n[server]\ncommand = "python app.py ${PORT}"\n'
FULL = """
schema = 1
name = "web"
labels = { team = "chat" }

[server]
command = ["uvicorn", "app:app", "--port", "${PORT}"]
ready = "/health"
network = "egress"
start_s = 30
stop_grace_s = 2.5
wake = ["/v1/*", "POST /run"]
free = ["/static/*"]
deny = ["/admin/*"]
[server.env]
MODE = "fast"

[scaling]
max = 3

[device]
kind = "cuda"
memory_mib = 512

[limits]
wait_s = 90
queue = 10
retry = "always"
concurrency = 4
first_byte_s = 20
stall_s = 5
max_s = 3600
drain_s = 60
websockets = "ignore"

[[sample]]
path = "/v1/answer?x=1"
method = "post"
headers = { Accept = "text/plain" }
body = "@question.json"
status = 201

[[sample]]
path = "/health"
"""


def refusal(text: str, files: list[str] | None = None) -> BadManifest:
    with pytest.raises(BadManifest) as caught:
        parse_manifest(text, FILES if files is None else files)
    return caught.value


def server(text: str) -> ServerSettings:
    settings = parse_manifest(text, FILES).server
    assert settings is not None
    return settings


def test_a_manifest_with_every_key() -> None:
    """Each key of a server function reaches its data class."""
    assert parse_manifest(FULL, FILES) == Manifest(
        name="web",
        engine="server",
        labels={"team": "chat"},
        scaling=Scaling(max=3),
        limits=Limits(wait_s=90.0, queue=10, retry="always"),
        device=DeviceNeed("cuda", 512),
        server=ServerSettings(
            command=("uvicorn", "app:app", "--port", "${PORT}"),
            env={"MODE": "fast"},
            ready="/health",
            network="egress",
            start_s=30.0,
            stop_grace_s=2.5,
            samples=(
                SampleRequest(
                    "/v1/answer?x=1", "POST", {"Accept": "text/plain"}, "@question.json", 201
                ),
                SampleRequest("/health"),
            ),
            paths=PathRules(("/v1/*", "POST /run"), ("/static/*",), ("/admin/*",)),
        ),
        exchange=ExchangeLimits(4, 20.0, 5.0, 3600.0, 60.0, "ignore"),
    )


def test_the_shortest_manifest() -> None:
    """A command suffices; everything else has the defaults of the data classes."""
    assert parse_manifest(SHORT, []) == Manifest(
        engine="server",
        server=ServerSettings(("python", "app.py", "${PORT}")),
        exchange=ExchangeLimits(),
    )


def test_open_exchanges_may_last_as_long_as_any_exchange() -> None:
    """`drain_s` is `max_s` where it is not set."""
    exchange = parse_manifest(SHORT + "[limits]\nmax_s = 7", []).exchange

    assert exchange is not None
    assert (exchange.max_s, exchange.drain_s) == (7.0, 7.0)


def test_the_files_of_samples_are_named() -> None:
    """A body of a sample in a file is one of the manifest's files."""
    assert parse_manifest(FULL, FILES).files == ("question.json",)


def test_a_single_sample_is_a_table() -> None:
    """One request needs no list."""
    assert server(SHORT + '[sample]\nbody = "x"').samples == (SampleRequest(body="x"),)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("\"sh -c 'exec app ${PORT}'\"", ("sh", "-c", "exec app ${PORT}")),
        ('["app", "", "${SOCKET}"]', ("app", "", "${SOCKET}")),
    ],
)
def test_a_command_is_a_list_or_a_string(command: str, words: tuple[str, ...]) -> None:
    """A string is split as by a shell; the words of a list are taken as they are."""
    assert server(f"schema = 1\nserver.command = {command}").command == words


@pytest.mark.parametrize(
    "text",
    [
        'schema = 1\n[server]\ncommand = ["app"]\nport = 9000',
        'schema = 1\n[server]\ncommand = ["app"]\nenv.ADDRESS = "0.0.0.0:${PORT}"',
        'schema = 1\n[server]\ncommand = ["app"]\nenv.ADDRESS = "${SOCKET}"',
    ],
)
def test_the_address_may_be_a_variable_or_a_port(text: str) -> None:
    """A command without a placeholder is accepted where a variable or `port` has the address."""
    assert server(text).command == ("app",)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "server.command: expected a program and its arguments, got nothing"),
        ('command = ["", "x"]', "server.command: expected a program and its arguments"),
        ("command = 3", "server.command: expected a list, got 3"),
        ('command = "app \'x"', "server.command: expected words as a shell splits them (No"),
        ('command = "cd x && app ${PORT}"', "expected no '&&', as no shell runs the command"),
        ('command = "cd x"', "expected a program first, and 'cd' is a shell's"),
        ('command = "A=1 app ${PORT}"', "expected a program first: variables are set by --env"),
        ('command = "run/x.py ${PORT}"', 'such as python3 in "python3 run/x.py"'),
        ('command = ["a\\u0000", "${PORT}"]', "server.command: expected words without a zero"),
        ('command = ["app", 3]', "server.command.1: expected a string, got 3"),
        ('command = "app"', "server.command: expected ${PORT} in it or in server.env, or "),
        ('command = "a ${PORT} ${SOCKET}"', "expected ${SOCKET} alone, or a port, got 'both'"),
        ('command = "a ${SOCKET}"\nport = 1', "expected ${SOCKET} alone, or a port, got 'both'"),
        ('command = "run/start.sh ${PORT}"', "which is a file of the bundle: these are not"),
        ('command = "./run/start.sh ${PORT}"', 'such as sh in "sh ./run/start.sh"'),
        ('command = "a ${PORT}"\nport = 65536', "server.port: expected at most 65535, got 65536"),
        ('command = "a ${PORT}"\nready = "health"', "server.ready: expected a path that begins"),
        ('command = "a ${PORT}"\nready = "/a b"', "server.ready: expected a path that begins"),
        ('command = "a ${PORT}"\nready = "/a#b"', "server.ready: expected a path that begins"),
        ('command = "a ${PORT}"\nready = "/ä"', "server.ready: expected a path that begins"),
        ('command = "a ${PORT}"\nnetwork = "host"', "server.network: expected 'none' or 'egress'"),
        ('command = "a ${PORT}"\nstart_s = 0', "server.start_s: expected at least 1, got 0"),
        ('command = "a ${PORT}"\nstop_grace_s = -1', "server.stop_grace_s: expected at least 0"),
        (
            'command = "a ${PORT}"\nwake = ["/", "v1"]',
            "server.wake.1: expected [METHOD ]PATTERN of",
        ),
        ('command = "a ${PORT}"\nfree = ["get /x"]', "server.free.0: expected "),
        ('command = "a ${PORT}"\ndeny = [""]', "server.deny.0: expected "),
        ('command = "a ${PORT}"\nenv.A = 1', "server.env.A: expected a string, got 1"),
        ('command = "a ${PORT}"\nenv."A-B" = "1"', "server.env.A-B: expected a name of letters"),
        ('command = "a ${PORT}"\nenv.FN_REPLICA = ""', "server.env.FN_REPLICA: expected another"),
        ('command = "a ${PORT}"\nsecrets.FN_BUNDLE = "x"', "server.secrets.FN_BUNDLE: expected"),
        ('command = "a ${PORT}"\nenv.A = "\\u0000"', "server.env.A: expected text without a zero"),
        ('command = "a ${PORT}"\ncolour = "x"', "server.colour: unknown key; known are"),
        ('command = "a ${PORT}"\nredy = "/x"', "server.redy: unknown key; did you mean 'ready'?"),
    ],
)
def test_a_bad_server_table_is_refused(table: str, said: str) -> None:
    """Each refusal names the key, what was expected, and what it got."""
    assert said in refusal(f"schema = 1\n[server]\n{table}").message


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(
            (name, "names of header fields with _")
            for name in ("x-y", "", "x_y:", "x y_", "_" * 65)
        ),
        ("SCRIPT_NAME", "another name, got 'SCRIPT_NAME', which stands for a field of the class"),
        *((name, "another name") for name in ("X_Forwarded_Port", "x-forwarded_for", "x_host")),
        *((name, "another name") for name in ("content_length", "proxy_x", "fn_key", "x_sendfile")),
        *((name, "another name") for name in ("x_api_key", "x_http_method", "content_type")),
    ],
)
def test_a_field_of_a_class_cannot_be_let_through(name: str, said: str) -> None:
    """`fields` is for names that mean nothing to servers of the CGI family."""
    text = f'schema = 1\n[server]\ncommand = "a ${{PORT}}"\nfields = ["{name}"]'

    assert f"server.fields: expected {said}" in refusal(text).message


def test_the_length_of_a_command_is_limited() -> None:
    """Words and variables together have a limit, below what the kernel takes."""
    words = ", ".join(['"${PORT}"', *['"' + "€" * 10_000 + '"'] * 5])

    assert "expected at most 131072 bytes with server.env, got" in (
        refusal(f"schema = 1\nserver.command = [{words}]").message
    )


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('model = "m.onnx"', "model: expected no such key with [server]"),
        ('runtime.engine = "python"', "runtime: expected no such key with [server]"),
        ("input.x.size = [1, 1]", "input: expected no such key with [server]"),
        ('output.tensor = "x"', "output: expected no such key with [server]"),
        ("batching.max_size = 2", "batching: expected no such key with [server]"),
        ("limits.timeout_s = 5", "limits.timeout_s: expected limits.max_s for the whole exchange"),
        ("limits.body_mib = 5", "limits.body_mib: expected no such key with [server]"),
        ("limits.concurrency = 0", "limits.concurrency: expected at least 1, got 0"),
        ("limits.concurrency = 10001", "limits.concurrency: expected at most 10000, got 10001"),
        ("limits.max_s = 86401", "limits.max_s: expected at most 86400, got 86401"),
        ('limits.websockets = "no"', "limits.websockets: expected 'count' or 'ignore', got 'no'"),
    ],
)
def test_keys_of_model_functions_are_refused(rest: str, said: str) -> None:
    """Keys that have no effect on a server are refused, with the key to use instead."""
    text = 'schema = 1\nserver.command = "app ${PORT}"\n'

    assert said in refusal(text + rest).message


def test_a_handler_beside_a_server_is_refused() -> None:
    """A folder is a server or a Python function, never both."""
    assert "server: expected no handler.py beside it" in refusal(SHORT, ["handler.py"]).message


@pytest.mark.parametrize(
    "key", ["concurrency", "first_byte_s", "stall_s", "max_s", "drain_s", "websockets"]
)
def test_limits_of_servers_are_refused_elsewhere(key: str) -> None:
    """A model function with a limit of exchanges is refused, even with its default."""
    value = '"count"' if key == "websockets" else "32"
    error = refusal(f"schema = 1\nlimits.{key} = {value}", ["m.onnx"])

    assert f"function.toml: limits.{key}: expected " in error.message
    assert "without [server]" in error.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sample = 3", "sample: expected a table, or a list of tables, got 3"),
        ("sample = [3]", "sample.0: expected a table, got 3"),
        ('sample.path = "x"', "sample.path: expected a path that begins with /"),
        ('sample.method = "G T"', "sample.method: expected a method such as GET, got 'G T'"),
        ("sample.method = 3", "sample.method: expected a string, got 3"),
        ("sample.status = 100", "sample.status: expected 0, or a status from 200 to 599"),
        ("sample.status = 600", "sample.status: expected at most 599, got 600"),
        ('sample.headers."a b" = "x"', "sample.headers.a b: expected the name of a header field"),
        ('sample.headers.host = "x"', "which is set by fngate itself"),
        ('sample.headers.x = "a\\nb"', "sample.headers.x: expected printable ASCII characters"),
        ('sample.body = "@no.json"', "sample.body: expected text, or @ and one of the bundle's"),
        ("sample = [{}, {pth = 1}]", "sample.1.pth: unknown key; did you mean 'path'?"),
        ("sample = [" + "{}, " * 21 + "]", "sample: expected at most 20 requests, got 21"),
        (
            "sample = [{golden = true}, {golden = true}]",
            "sample: expected at most one with golden = true, got 'more'",
        ),
        (
            'sample.golden = true\nopenai.upstream_key = "key"',
            "sample.golden: expected no golden sample with openai.upstream_key",
        ),
        ("health.sample_every_s = 60", "health.sample_every_s: expected 0 without a golden"),
        (
            "openai.base = '/v1'\nhealth.sample_every_s = 0.5",
            "health.sample_every_s: expected 0, or at least 1, got 0.5",
        ),
        (
            "openai.base = '/v1'\nserver.network = 'egress'\nhealth.sample_every_s = 60",
            "health.sample_every_s: expected 0 without a golden sample",
        ),
    ],
)
def test_a_bad_sample_is_refused(text: str, said: str) -> None:
    """Each refusal of a sample names the request, the key, what was expected, and what it got."""
    whole = f'schema = 1\nserver.command = "app ${{PORT}}"\n{text}'

    assert said in refusal(whole).message


@pytest.mark.parametrize("table", ["openai = {}", "sample.golden = true"])
def test_an_idle_server_may_be_asked_its_golden_sample(table: str) -> None:
    """At intervals; by default never."""
    text = f'schema = 1\nserver.command = "app ${{PORT}}"\n{table}\n'

    assert parse_manifest(text, FILES).health == Health()
    asked = parse_manifest(f"{text}health.sample_every_s = 60", FILES)
    assert asked.health == Health(sample_every_s=60)


def test_a_model_function_has_no_golden_sample() -> None:
    """Its own rules compare it."""
    error = refusal("schema = 1\nhealth.sample_every_s = 0", ["m.onnx"])

    assert "health: expected no such key without [server]" in error.message


def test_a_list_of_samples_needs_a_server() -> None:
    """A model function's samples are values of its inputs."""
    error = refusal("schema = 1\nsample = [{}]", ["m.onnx"])

    assert "sample: expected a table, got [{}]" in error.message


def test_the_command_line_overrides_keys_of_a_server() -> None:
    """Options replace a server's keys; variables are added to those of the file."""
    changed = overrides(
        parse_manifest(FULL, FILES),
        command="app ${PORT}",
        env={"NEW": "1"},
        port=9000,
        ready="/up",
        network="none",
        concurrency=1,
    )

    assert changed.server is not None
    assert changed.exchange is not None
    assert changed.server.command == ("app", "${PORT}")
    assert changed.server.env == {"MODE": "fast", "NEW": "1"}
    assert (changed.server.port, changed.server.ready) == (9000, "/up")
    assert (changed.server.network, changed.exchange.concurrency) == ("none", 1)


def test_overriding_nothing_changes_nothing() -> None:
    """The tables that a manifest is validated with again are the ones that it was read from."""
    manifest = parse_manifest(FULL, FILES)

    assert overrides(manifest) == manifest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"timeout_s": 5.0}, "limits.timeout_s: expected limits.max_s"),
        ({"batch_max": 5}, "batching.max_size: expected a function without [server], got 5"),
        ({"env": 3}, "server.env: expected a table, got 3"),
        ({"ready": "x"}, "server.ready: expected a path"),
    ],
)
def test_a_bad_override_of_a_server_is_refused(changes: dict[str, Any], said: str) -> None:
    """Overrides follow the rules of the file."""
    with pytest.raises(BadManifest) as caught:
        overrides(parse_manifest(SHORT, FILES), **changes)

    assert said in caught.value.message


def test_an_override_of_a_server_needs_a_server() -> None:
    """Options of servers are refused for model functions, with the key."""
    manifest = parse_manifest("schema = 1", ["m.onnx"])

    for changes, key in (({"port": 80}, "server.port"), ({"concurrency": 2}, "limits.concurrency")):
        with pytest.raises(BadManifest) as caught:
            overrides(manifest, **changes)  # type: ignore[arg-type]  # one of both keys
        assert f"function.toml: {key}: expected" in caught.value.message


@pytest.mark.parametrize(
    "host",
    [
        *("client", "loopback", "localhost", "App.example", "a_b.example:1", "127.0.0.1:65535"),
        *("[::1]", "[fe80::1]:8080", "a" * 253 + ":65535"),
    ],
)
def test_the_host_that_a_server_sees(host: str) -> None:
    """A word, or host and port (RFC 3986 section 3.2.2)."""
    server = parse_manifest(
        f'schema = 1\n[server]\ncommand = "a ${{PORT}}"\nhost = "{host}"', []
    ).server

    assert server is not None
    assert server.host == host


@pytest.mark.parametrize(
    "host",
    [
        *("", "a b", "http://a.example", "a.example/x", "u@a.example", "a:", "a:0", "a:65536"),
        *(
            "a:99999999",
            "::1",
            "[::1",
            "[1.2.3]",
            "[fe80::1%25eth0]",
            "a.example,b",
            "*",
            "ä.example",
        ),
        *("a\\r\\nX-A: b", "a\\u0000", "a" * 254),
    ],
)
def test_no_host(host: str) -> None:
    """The value goes into a head as it is."""
    text = f'schema = 1\n[server]\ncommand = "a ${{PORT}}"\nhost = "{host}"'

    said = refusal(text).message
    words = "expected auto, client, loopback, or a host such as app.example:8080"
    assert f"server.host: {words}" in said


def test_a_long_host_is_refused_by_its_length() -> None:
    """Before anything reads it."""
    text = f'schema = 1\n[server]\ncommand = "a ${{PORT}}"\nhost = "{"a" * 10_000}"'

    assert "server.host" in refusal(text).message
