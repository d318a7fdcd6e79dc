"""Programs that look for a network which their container does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.replicas.records import EGRESS_ADVICE, HANDLER_ADVICE
from tests.support.container_server import container_server
from tests.support.engine import base_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

CODE = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
MANIFEST = 'schema = 1\n[runtime]\nengine = "python"\n[input.r]\nkind = "json"\n'


def test_the_lack_of_a_network_is_told(engine: str, runtime_image: str, tmp_path: Path) -> None:
    """An image is told of egress, unless it has that; a handler that it has no network."""
    handler = tmp_path / "handler"
    handler.mkdir()
    (handler / "handler.py").write_text(CODE)
    (handler / "function.toml").write_text(MANIFEST)
    image = ("--image", base_image(), "--port", "8000")
    words = ("--", "python3", "-c", CODE.replace("192.0.2.1", "127.0.0.1"))
    variables = {"FN_STANDBYS": "0"}
    with container_server(tmp_path / "data", engine, runtime_image, **variables) as server:
        cut = server.fnctl("deploy", "--name", "cut", *image, "--", "python3", "-c", CODE)
        other = server.fnctl("deploy", "--name", "other", *image, *words)
        failed = server.fnctl("deploy", str(handler), "--name", "handler", "--trust")
        server.stop()

    said = [" ".join(one.stderr.split()) for one in (cut, other, failed)]
    assert [EGRESS_ADVICE in text for text in said] == [True, False, False], said
    assert [HANDLER_ADVICE in text for text in said] == [False, False, True], said
