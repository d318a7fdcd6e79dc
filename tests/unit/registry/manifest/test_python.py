"""Tests of the table [python] in function.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_runner.settings import Settings, read_settings
from registry.catalog import Deployed
from registry.errors import BadManifest
from registry.manifest import Manifest, overrides, parse_manifest
from registry.model.functions import Function
from registry.model.revisions import Revision
from registry.model.servers import PythonSettings
from registry.spec import runner_settings
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.signature import Signature

FILES = [
    *("handler.py", "app.py", "page.html"),
    *("requirements.txt", "needs.txt", "cat.png", "sub/needs.txt"),
]
SHORT = "schema = 1\n[python]\n"
FULL = """
schema = 1
name = "classify"
[python]
version = "3.12"
needs = "needs.txt"
handler = "app.py"
page = "page.html"
network = "egress"
start_s = 30
stop_grace_s = 2
env = { MODE = "fast" }
secrets = { TOKEN = "hub" }
[input.image]
kind = "image"
size = [8, 8]
[output]
kind = "text"
content_type = "text/html"
labels = ["a", "b"]
top_k = 2
[sample]
image = "@cat.png"
[batching]
mode = "always"
max_size = 8
[limits]
timeout_s = 5
body_mib = 2
concurrency = 4
drain_s = 9
"""


def refusal(text: str, **changes: object) -> str:
    """Return the error of a manifest, or of its overrides."""
    with pytest.raises(BadManifest) as caught:
        overrides(parse_manifest(text, FILES), **changes)  # type: ignore[arg-type]
    return caught.value.message.removeprefix("function.toml: ")


def test_an_empty_table_makes_a_function_of_the_handler() -> None:
    """All defaults: its server is ours, which others cannot ask for its own paths."""
    found = parse_manifest(SHORT, FILES)
    assert found.is_python
    assert (found.engine, found.handler, found.model) == ("server", "handler.py", "")
    assert found.server is not None
    assert found.server.python == PythonSettings()
    assert found.server.ready == "/.fngate/ready"
    assert found.server.paths.deny == ("/.fngate/*",)
    assert found.server.samples == ()
    assert found.exchange is not None


def test_every_key_reaches_the_settings() -> None:
    """The table, and those of models beside it."""
    found = parse_manifest(FULL, FILES)
    server = found.server
    assert server is not None
    assert server.python == PythonSettings(
        "3.12", "needs.txt", "text", "text/html", 8, page="page.html"
    )
    assert (server.network, server.start_s, server.stop_grace_s) == ("egress", 30, 2)
    assert (server.env, server.secrets) == ({"MODE": "fast"}, {"TOKEN": "hub"})
    assert server.samples == (
        SampleRequest("/", "POST", {"Content-Type": "image/png"}, "@cat.png"),
    )
    assert (found.limits.timeout_s, found.limits.body_mib) == (5, 2)
    assert found.exchange is not None
    assert (found.exchange.concurrency, found.exchange.drain_s) == (4, 9)
    assert found.inputs["image"].shape == (-1, 3, 8, 8)
    assert found.files == ("app.py", "cat.png", "needs.txt")


def test_values_are_a_sample_as_of_a_model() -> None:
    """They are sent as short JSON."""
    server = parse_manifest(f"{SHORT}[sample]\ntext = 'a'\nn = 2\n", FILES).server
    assert server is not None
    assert json.loads(server.samples[0].body) == {"inputs": {"text": "a", "n": 2}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"{SHORT}env = {{}}\n[server]\ncommand = 'x ${{PORT}}'",
            "python.env: expected version or",
        ),
        (f"{SHORT}[server]\nimage = 'x'", "python: expected no such table with server.image"),
        (
            f"{SHORT}needs = 'x.txt'\n[server]\ncommand = 'x ${{PORT}}'",
            "python.needs: expected one",
        ),
        (f"model = 'a.onnx'\n{SHORT}", "model: expected no such key with [python]"),
        (f"{SHORT}[openai]", "openai: expected no such key with [python]; an application with"),
        (f"{SHORT}[runtime]", "runtime: expected no such key with [python], which says what runs"),
        (f"{SHORT}page = 'a.html'", "python.page: expected one of the folder's files"),
        (f"{SHORT}needs = 'x.txt'", "python.needs: expected one of the folder's files"),
        (f"{SHORT}needs = 'sub/needs.txt'", "python.needs: expected a file of the folder, not"),
        (f"{SHORT}needs = 'cat.png'", "python.needs: expected a name that ends with .txt"),
        (f"{SHORT}handler = 'x.py'", "python.handler: expected one of the folder's files"),
        (f"{SHORT}handler = 'cat.png'", "python.handler: expected the path of a Python file"),
        (f"{SHORT}[python.env]\nFN_BUNDLE = 'x'", "python.env.FN_BUNDLE: expected another name"),
        (
            f"{SHORT}env = {{A = '1'}}\nsecrets = {{A = 'b'}}",
            "python.secrets.A: expected a variable",
        ),
        (f"{SHORT}command = 'x'", "python.command: unknown key"),
        (f"{SHORT}[sample]\na = '@x'", "sample.a: expected @ and one of the bundle's files"),
        (f"{SHORT}[sample]\na = '@cat.png'\nb = 1", "sample: expected a file as its only input"),
        (f"{SHORT}[sample]\na = 2020-01-01", "sample: expected values that JSON has"),
        (f"{SHORT}[batching]\nwait_ms = 1", "batching.wait_ms: expected 0 with [python]"),
        (f"{SHORT}[output]\ncontent_type = 'text/html'", "output.kind: expected text or bytes"),
        (
            "schema = 1\n[runtime]\nengine = 'python'\n[input.a]\nkind = 'json'",
            "python: expected [python] in place of [runtime], so that packages of requirements.txt",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, told: str) -> None:
    """The error names the key."""
    assert refusal(text).startswith(told)


def test_a_command_runs_beside_packages() -> None:
    """It is a server as any other: with its own keys, samples and limits."""
    text = f"{SHORT}version = '3.11'\n[server]\ncommand = 'uvicorn app:app --port ${{PORT}}'\n"
    found = overrides(parse_manifest(text, FILES), env={"A": "1"}, port=80)
    assert not found.is_python
    assert found.handler == ""
    assert found.server is not None
    assert found.server.command[0] == "uvicorn"
    assert (found.server.env, found.server.port) == ({"A": "1"}, 80)
    assert found.server.python == PythonSettings("3.11")
    assert refusal(f"{text}[limits]\ntimeout_s = 1").startswith("limits.timeout_s")
    assert refusal(text, batching="always").startswith("batching.mode")


def test_options_override_what_the_table_has() -> None:
    """Those of servers that Python functions have, and those of models."""
    found = overrides(
        parse_manifest(FULL, FILES),
        env={"LEVEL": "2"},
        network="none",
        concurrency=7,
        timeout_s=9.0,
        batch_max=3,
    )
    assert isinstance(found, Manifest)
    assert found.server is not None
    assert found.server.env == {"MODE": "fast", "LEVEL": "2"}
    assert found.server.network == "none"
    assert found.server.python == PythonSettings(
        "3.12", "needs.txt", "text", "text/html", 3, page="page.html"
    )
    assert found.server.samples == parse_manifest(FULL, FILES).server.samples  # type: ignore[union-attr]
    assert found.exchange is not None
    assert (found.exchange.concurrency, found.limits.timeout_s) == (7, 9)
    assert (
        refusal(SHORT, command=["x"])
        == "server.command: expected a function without [python], got ['x']"
    )
    assert refusal(SHORT, port=80).startswith("server.port: expected a function without [python]")


@pytest.mark.parametrize(("text", "lanes", "batch"), [(FULL, 1, 8), (SHORT, 32, 0)])
def test_our_server_reads_the_settings(tmp_path: Path, text: str, lanes: int, batch: int) -> None:
    """What a start writes is what the runner takes."""
    found = parse_manifest(text, FILES)
    function = Function("f", 1, limits=found.limits, exchange=found.exchange)
    revision = Revision(
        *("f", 2, "0" * 64, Signature("http", (), ()), "server"),
        handler=found.handler,
        inputs=found.inputs,
        output=found.output,
        server=found.server,
    )
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(runner_settings(Deployed(function, revision))))
    read = read_settings(path, "/run/http.sock")
    assert isinstance(read, Settings)
    assert (read.listen, read.revision) == ("/run/http.sock", "f@2")
    assert (read.handler, read.concurrency, read.batch_max) == (found.handler, lanes, batch)
    assert (read.timeout_s, read.body_mib) == (found.limits.timeout_s, found.limits.body_mib)
    assert found.server is not None
    assert found.server.python is not None
    assert read.page == found.server.python.page == ("page.html" if text is FULL else "")
    assert read.inputs == found.inputs
    assert read.output.labels == found.output.labels
    with pytest.raises(ValueError, match="no Python function"):
        runner_settings(Deployed(function, Revision("f", 1, "", Signature("json", (), ()))))
