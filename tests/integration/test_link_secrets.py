"""Tests that nothing shows the secrets of links over TLS: the authority's key, the keys of replicas
and gateways, and the tokens and greetings of replicas."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import fields

from admin.documents.routes import PREFIX, ROUTES
from hosts.tls.authority import AUTHORITY_FILE, Authority
from registry.exchange import TlsRoute
from runtime_image.contract.enrolment import GATEWAY_NAME
from runtime_image.link.credentials import Credentials
from runtime_image.link.frames import LinkError
from tests.chaos.calls import client
from tests.chaos.floods import ROW
from tests.chaos.links.scene import FAR
from tests.support import models
from tests.support.dial_in.places import free_port, loopback
from tests.support.process_server import ServerProcess, server_process

MARK = b"PRIVATE KEY"
SECRET_MIN = 20
PROGRAM = (sys.executable, "-m", "tests.support.dial_in")


def key_lines(pem: str) -> list[bytes]:
    """Return the lines of a PEM text's key."""
    key = pem.partition("PRIVATE KEY-----")[2].partition("-----END")[0]
    return [line.encode() for line in key.split()]


def test_no_text_of_an_object_shows_a_key(tmp_path: Path) -> None:
    """repr and str of what carries keys, and the errors of what reads them, show none."""
    authority = Authority.open(tmp_path / "link", 1, lambda: 1.8e9)
    issued = authority.issue(GATEWAY_NAME)
    route = TlsRoute(authority.pem, issued.certificate, issued.key, 1)
    credentials = Credentials(authority.pem)
    credentials.replace({"certificate": issued.certificate, "key": issued.key})
    texts = [repr(one) + str(one) for one in (authority, issued, route, credentials, [route])]
    other = authority.issue(GATEWAY_NAME)
    for key in (other.key, issued.key[:-60], issued.key.replace("PRIVATE", "OTHER")):
        with pytest.raises(LinkError) as caught:
            credentials.replace({"certificate": issued.certificate, "key": key})
        texts.append(repr(caught.value) + str(caught.value))

    assert {field.name for field in fields(route)} >= {"key"}
    for line in (*key_lines(issued.key), *key_lines(other.key)):
        assert line not in "".join(texts).encode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with a host whose replicas dial in."""
    places = tmp_path / "places.json"
    places.write_text(json.dumps([loopback("far", tmp_path).to_json()]))
    environment = {
        "FN_LINK_LISTEN": f"127.0.0.1:{free_port()}",
        "FN_TEST_PLACES": str(places),
        "FN_LOG_LEVEL": "debug",
    }
    with server_process(tmp_path / "data", program=PROGRAM, environment=environment) as one:
        yield one


@pytest.mark.slow
async def test_a_server_shows_no_secret(server: ServerProcess, tmp_path: Path) -> None:
    """After a trial, a cold call and a refused peer: no answer of the admin API, no metric, no
    event, no output of fnctl, no backup, no log and no file but the authority's own and the records
    of replicas has a key, a token or a greeting; those files are for the server's user alone."""
    kept = server.data / "link" / AUTHORITY_FILE
    async with client(server) as caller:
        await caller.deploy(models.add_one(tmp_path), name="affine", manifest=FAR, min=1)
        assert (await caller.call("affine", ROW)).status == 200
        # Beside them may be one that is being written.
        records = list(server.data.rglob("replica.json"))
        assert records
        secrets = key_lines(kept.read_text())
        for record in records:
            found = json.loads(record.read_text())
            secrets += [found["token"].encode(), found["greeting"].encode()]
        secrets = [one for one in secrets if len(one) >= SECRET_MIN]  # no greeting, end of a key
        assert len(secrets) >= 4
        shown = {"/metrics": (await caller.get("/metrics")).body}
        for key, about in ROUTES.items():
            method, path = key.split(" ")
            if method == "GET" and about.events is None:
                whole = PREFIX + path.replace("{name}", "affine")
                shown[whole] = (await caller.get(whole)).body
    for words in (
        ["ls"],
        ["show", "affine"],
        ["why", "affine"],
        ["logs", "affine"],
        ["host", "ls"],
        ["doctor"],
        ["backup", str(tmp_path / "backup.db")],
    ):
        done = server.fnctl(*words)
        shown[f"fnctl {' '.join(words)}"] = (done.stdout + done.stderr).encode()
    shown["the log"] = "".join(server.log).encode()
    private = {kept, *server.data.rglob("replica.json*")}
    for path in (tmp_path / "backup.db", *server.data.rglob("*")):
        if path.is_file() and path not in private:
            shown[str(path)] = path.read_bytes()

    assert len(shown) > 40
    assert b"affine" in shown["fnctl show affine"]
    for name, text in shown.items():
        for secret in (MARK, *secrets):
            assert secret not in text, f"{name} shows {secret[:8]!r}..."
    for path in private:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
