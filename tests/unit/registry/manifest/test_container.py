"""Tests of the keys of [server] for images, secrets and origins."""

from __future__ import annotations

from typing import Any

import pytest

from registry.errors import BadManifest
from registry.manifest.container import check_origin, origin_fault
from registry.manifest.document import overrides, parse_manifest
from registry.manifest.server import ServerTable, server_settings, server_table
from registry.model.servers import HOST_OF_LOOPBACK, Mount, ServerImage

WHOLE = """
schema = 1
[server]
image = "registry.example:5000/team/vllm-openai:v0.33.0"
command = ["--model", "/models/qwen"]
port = 8000
network = "egress"
user = "33"
capabilities = ["SETUID", "CHOWN", "SETUID"]
writable = { "/run" = 16, "/var/lib/nginx" = 64 }
shm_mib = 1024
stop_signal = "SIGQUIT"
origins = ["https://app.example", "http://127.0.0.1:3000"]
fields = ["X_Y", "api_version", "x_y"]
host = "loopback"

[server.mounts]
models = "/srv/models:/models"
cache = "/srv/cache:/cache:rw"

[server.secrets]
HF_TOKEN = "hf"
"""


def test_an_image_has_all_its_keys() -> None:
    """Every key reaches the settings; a lone user id gets a group of the same number."""
    server = parse_manifest(WHOLE, []).server

    assert server is not None
    assert server.image == ServerImage("registry.example:5000/team/vllm-openai:v0.33.0")
    assert server.command == ("--model", "/models/qwen")
    assert (server.user, server.capabilities) == ("33:33", ("CHOWN", "SETUID"))
    assert server.writable == {"/run": 16, "/var/lib/nginx": 64}
    assert (server.shm_mib, server.stop_signal) == (1024, "SIGQUIT")
    assert server.mounts == (
        Mount("models", "/srv/models", "/models"),
        Mount("cache", "/srv/cache", "/cache", is_read_only=False),
    )
    assert server.secrets == {"HF_TOKEN": "hf"}
    assert server.origins == ("https://app.example", "http://127.0.0.1:3000")
    assert server.fields == ("x_y", "api_version")
    assert server.host == HOST_OF_LOOPBACK


def test_the_table_of_settings_gives_the_settings() -> None:
    """`server_table` is the inverse of `server_settings`."""
    server = parse_manifest(WHOLE, []).server
    assert server is not None

    again = server_settings(ServerTable(**server_table(server, 1)), (), (), 1)

    assert again == server


def test_an_image_needs_neither_command_nor_port() -> None:
    """The image says what it runs, and perhaps on which port."""
    server = parse_manifest('schema = 1\n[server]\nimage = "nginx"\n', []).server

    assert server is not None
    assert (server.image, server.command, server.port) == (ServerImage("nginx"), (), 0)


def test_options_of_a_deploy_add_mounts_and_secrets() -> None:
    """Overrides of tables keep the manifest's other entries."""
    changed = overrides(
        parse_manifest(WHOLE, []), mounts={"data": "/srv/data:/data"}, secrets={"KEY": "key"}
    ).server

    assert changed is not None
    assert [one.name for one in changed.mounts] == ["models", "cache", "data"]
    assert changed.secrets == {"HF_TOKEN": "hf", "KEY": "key"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('user = "33"', "server.user: expected no such key without server.image"),
        ('capabilities = ["CHOWN"]', "server.capabilities: expected no such key without"),
        ('mounts = { m = "/a:/b" }', "server.mounts: expected no such key without"),
        ("shm_mib = 128", "server.shm_mib: expected no such key without"),
    ],
)
def test_a_command_has_no_keys_of_images(line: str, said: str) -> None:
    """A key that only images have is refused beside a command."""
    _refused(f'[server]\ncommand = "serve ${{PORT}}"\n{line}\n', said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('user = "www-data"', "server.user: expected UID or UID:GID"),
        ('user = "33:4294967295"', "server.user: expected UID or UID:GID"),
        ('capabilities = ["SYS_ADMIN"]', "server.capabilities: expected some of CHOWN"),
        ('capabilities = ["CAP_SETUI"]', "did you mean 'SETUID'?, got 'CAP_SETUI'"),
        ('writable = { "run" = 16 }', "server.writable: expected an absolute path"),
        ('writable = { "/run" = 0 }', "server.writable./run: expected 1 to"),
        ('writable = { "/proc/sys" = 1 }', "server.writable: expected an absolute path"),
        ('writable = { "/function" = 1 }', "server.writable: expected an absolute path"),
        ('mounts = { m = "/srv:/function/m" }', "where the function's files are"),
        ('stop_signal = "QUIT"', "server.stop_signal: expected a signal"),
        ('mounts = { m = "/srv" }', 'server.mounts.m: expected "SOURCE:TARGET"'),
        ('mounts = { m = "/srv:/data:z" }', 'server.mounts.m: expected "SOURCE:TARGET"'),
        ('mounts = { m = "/srv/../etc:/data" }', "server.mounts.m: expected an absolute path"),
        ('mounts = { m = "/:/data" }', "server.mounts.m: expected an absolute path"),
        ('mounts = { M = "/srv:/data" }', "server.mounts.M: expected a name"),
        ('mounts = { a = "/a:/x", b = "/b:/x" }', "server.mounts.a: expected a target of its own"),
        ('mounts = { a = "/a:/x", b = "/b:/x/" }', "server.mounts.a: expected a target of its own"),
        ('mounts = { m = "/srv://proc/sys" }', "server.mounts.m: expected an absolute path"),
        ('mounts = { m = "//srv:/data" }', "server.mounts.m: expected an absolute path"),
        ('mounts = { m = "/srv:/a//b" }', "server.mounts.m: expected an absolute path"),
        ('mounts = { m = "/srv:/a\\u202eb" }', "server.mounts.m: expected an absolute path"),
        ('writable = { "//dev/shm" = 1 }', "server.writable: expected an absolute path"),
        ('origins = ["https://app.example/"]', "server.origins: expected origins"),
        ('origins = ["https://app.example:443"]', "server.origins: expected origins"),
        ('origins = ["*"]', "server.origins: expected origins"),
        ('secrets = { TOKEN = "My Secret" }', "server.secrets.TOKEN: expected a name"),
        ('secrets = { "A B" = "hf" }', "server.secrets.A B: expected a name of letters"),
        ('env = { A = "1" }\nsecrets = { A = "hf" }', "server.secrets.A: expected a variable"),
    ],
)
def test_bad_keys_of_an_image_are_refused(line: str, said: str) -> None:
    """Each bad value is refused by its key, with what was expected."""
    _refused(f'[server]\nimage = "nginx:1.27"\n{line}\n', said)


@pytest.mark.parametrize("image", ["Nginx", "nginx:", "http://host/nginx", "a b", "nginx@sha256:1"])
def test_a_bad_image_is_refused(image: str) -> None:
    """The reference is a registry's, without scheme or white space."""
    _refused(f'[server]\nimage = "{image}"\n', "server.image: expected an image such as")


def _refused(text: str, said: str) -> Any:
    with pytest.raises(BadManifest) as caught:
        parse_manifest(f"schema = 1\n{text}", [])
    assert said in caught.value.message


@pytest.mark.parametrize(
    "origin",
    [
        *("app://.", "app://obsidian.md", "tauri://localhost", "capacitor://localhost"),
        *("chrome-extension://abcdefghijklmnopabcdefghijklmnop", "ionic://localhost:8100"),
        *("moz-extension://2c127fa4-62c7-7e4f-90e5-472b45eecfdc", "vscode-webview://1a2b"),
        *("http://[::1]:3000", "https://app.example:8443", "http://a.example:443"),
    ],
)
def test_origins_of_any_scheme(origin: str) -> None:
    """Apps and extensions have origins as pages have."""
    assert origin_fault(origin) == ""
    assert check_origin(origin) == origin


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        *(("null", "sandboxed"), ("file://", "file"), ("file://x", "file"), ("*", "wildcards")),
        *(("chrome-extension://*", "wildcards"), ("https://*.example", "wildcards")),
        *(("app://name/", "slash"), ("https://a.example/b", "path"), ("app:///x", "path")),
        *(("https://a.example:443", "443"), ("http://a.example:80", "80"), ("", "SCHEME")),
        *(("https://A.example", "SCHEME"), ("app:name", "SCHEME"), ("app://", "SCHEME")),
        *(("App://name", "SCHEME"), ("app://user@name", "SCHEME"), ("app://a\r\nb", "SCHEME")),
        *(("ws://a.example", "no page"), ("wss://a", "no page"), ("javascript://x", "no page")),
        ("app://" + "a" * 300, "at most 300"),
        *(("data:text/html,x", "no page"), ("app://n:0", "SCHEME"), ("https://a b", "SCHEME")),
    ],
)
def test_what_no_browser_sends_is_no_origin(origin: str, why: str) -> None:
    """The reason is named."""
    with pytest.raises(BadManifest, match=why):
        check_origin(origin)
