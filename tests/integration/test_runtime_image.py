"""Tests of the contents of the runtime image, and of a replica in a container of it."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import pytest
from docker import APIClient

from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, RECORD_FILE, ReplicaRecord
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import pack
from runtime_image.link.record import EXIT_BAD_RECORD, EXIT_OTHER_LINK
from tests.support import models, runtime_images
from tests.support.blocking import BlockingLink
from tests.support.engine import remove_container
from tests.support.greetings import bind_request

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

RECORD = ReplicaRecord(
    *("aaaa0001", "secret", "serve", "default", "default/digits@1", "/run/fn", ("cpu:0",), "cpu"),
    *("onnx", 1, 0.0, 0, 0.0),
    link=VERSION,
)
UNUSED_UID = "4242:4242"
COMPILED = """
import importlib.util, sys
from runtime_image.engines.loading import preload
preload("cpu")
import runtime_image.replica.main
for module in list(sys.modules.values()):
    spec = getattr(module, "__spec__", None)
    if spec and spec.has_location and str(spec.origin).endswith(".py"):
        with open(spec.cached, "rb") as file:
            head = file.read(8)
        assert head[:4] == importlib.util.MAGIC_NUMBER, spec.cached
        if spec.origin.startswith("/opt/fngate/"):
            assert head[4:8] == bytes([1, 0, 0, 0]), f"{spec.cached} is checked at each start"
print("compiled")
"""


@pytest.fixture
def client() -> Iterator[APIClient]:
    with runtime_images.connected() as connected:
        yield connected


@pytest.fixture
def image(runtime_image: str) -> str:
    """Return the tag of the CPU image of these sources."""
    return runtime_image


@contextmanager
def container(client: APIClient, image: str, **options: Any) -> Iterator[str]:
    """Create a container with the strictest settings of a replica."""
    mounts = options.pop("mounts", [])
    host = client.create_host_config(
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": ""},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mounts=mounts,
    )
    made = client.create_container(image, host_config=host, **options)
    try:
        client.start(made["Id"])
        yield made["Id"]
    finally:
        remove_container(client, made["Id"])


def ended(client: APIClient, id: str) -> tuple[int, str]:
    """Wait for the container's end; return exit code and output."""
    code = client.wait(id, timeout=60)["StatusCode"]
    return code, client.logs(id).decode()


def output(client: APIClient, image: str, code: str) -> str:
    """Run Python in the image as a user that it does not know; return the output."""
    with container(
        client, image, entrypoint=["python3", "-I", "-c"], command=[code], user=UNUSED_UID
    ) as id:
        exit_code, text = ended(client, id)
    assert exit_code == 0, text
    return text


@contextmanager
def launched(
    client: APIClient, image: str, run_dir: Path, record: dict[str, Any]
) -> Iterator[tuple[str, socket.socket, socket.socket]]:
    """Launch a replica in a container; yield its id and the listeners for control and data."""
    (run_dir / RECORD_FILE).write_text(json.dumps(record))
    mount = {"Type": "bind", "Source": str(run_dir), "Target": "/run/fn", "ReadOnly": True}
    with socket.socket(socket.AF_UNIX) as control, socket.socket(socket.AF_UNIX) as data:
        for listener, name in ((control, CONTROL_SOCKET), (data, DATA_SOCKET)):
            listener.bind(str(run_dir / name))
            (run_dir / name).chmod(0o777)
            listener.listen()
            listener.settimeout(60)
        with container(client, image, command=["/run/fn"], user=UNUSED_UID, mounts=[mount]) as id:
            yield id, control, data


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Create a run folder that every user may read, in folders that allow it too."""
    made = Path(tempfile.mkdtemp(prefix="fn-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_it_runs_as_a_user_of_its_own(client: APIClient, image: str) -> None:
    """The image's user is not root, its entry point is no shell, and telemetry is off."""
    config = client.inspect_image(image)["Config"]

    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["python3", "-I", "-u", "-m", "runtime_image"]
    assert config["Cmd"] is None
    assert "ORT_DISABLE_TELEMETRY=1" in config["Env"]


def test_it_has_libraries_and_code_only(client: APIClient, image: str) -> None:
    """The image has no other package of fngate, no tests or wheels, and nothing that others may
    write."""
    found = output(
        client,
        image,
        "import os, stat\n"
        "print(*sorted(name for name in os.listdir('/opt/fngate') if '-' not in name))\n"
        "for top in ('/opt', '/build', '/root', '/srv', '/home'):\n"
        "    for folder, _, names in os.walk(top):\n"
        "        for name in names:\n"
        "            path = os.path.join(folder, name)\n"
        "            if name.endswith('.whl') or os.lstat(path).st_mode & stat.S_IWOTH:\n"
        "                print(path)\n"
        "print(*sorted(os.listdir('/opt/fngate/runtime_image')))",
    ).splitlines()

    top, own = found[0].split(), found[-1].split()
    assert len(found) == 2
    assert {"runtime_image", "onnxruntime", "numpy", "PIL", "msgspec"} <= {*top}
    assert {*top} & {"admin", "gateway", "pool_manager", "registry", "tests", "bin", "pip"} == set()
    assert {*own} - {"__pycache__", "__init__.py", "__main__.py"} == {
        *("agent", "codecs", "compilers", "contract", "engines", "gpus", "link", "replica"),
        *("seccomp", "server", "verification"),
    }


def test_it_has_the_locale_of_models_that_normalise_strings(client: APIClient, image: str) -> None:
    """The locale en_US.UTF-8, StringNormalizer's default, is present."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (string[n] x) => (string[n] y)'
        ' { y = StringNormalizer <case_change_action = "LOWER"> (x) }'
    ).SerializeToString()
    code = (
        "import numpy, onnxruntime\n"
        f"session = onnxruntime.InferenceSession({model!r})\n"
        "given = numpy.array(['\\xc9COLE'], dtype=object)\n"
        "print(ascii(session.run(None, {'x': given})[0][0]))"
    )

    assert output(client, image, code).splitlines()[-1] == r"'\xe9cole'"


def test_nothing_is_compiled_at_a_start(client: APIClient, image: str) -> None:
    """Every module of a standby is compiled in the image, without a check of its source."""
    assert output(client, image, COMPILED) == "compiled\n"


def test_a_replica_serves_from_a_container(client: APIClient, image: str, run_dir: Path) -> None:
    """A read-only container without privileges or network, as any user, greets, loads and ends."""
    model = models.add_one(run_dir)
    record = {**asdict(RECORD), "launched_s": time.monotonic()}
    with launched(client, image, run_dir, record) as (id, control, data):
        sock, _ = control.accept()
        sock.settimeout(60)
        link = BlockingLink(sock)
        hello = json.loads(link.next(Kind.HELLO).body)
        socket.send_fds(sock, [b"".join(pack(Kind.WELCOME))], [data.fileno()])
        spec = ModelSpec("digits@1", "onnx", model.name, "")
        link.send(Kind.BIND, body=json.dumps(bind_request(spec)).encode())
        loaded = link.next()
        link.send(Kind.DRAIN)
        code, text = ended(client, id)
        link.close()

    assert (hello["token"], hello["version"]) == ("secret", VERSION)
    assert loaded.kind is Kind.LOADED
    assert (code, text) == (0, "")


@pytest.mark.parametrize(
    ("record", "code", "said"),
    [
        (
            {"link": VERSION + 1, "anything": []},
            EXIT_OTHER_LINK,
            f"this replica speaks link version {VERSION}, its manager {VERSION + 1}:",
        ),
        ({"link": VERSION}, EXIT_BAD_RECORD, "malformed replica.json: missing fields: bound,"),
    ],
)
def test_another_managers_record_is_refused(
    client: APIClient, image: str, run_dir: Path, record: dict[str, Any], code: int, said: str
) -> None:
    """A record of another link version, or a malformed one, gives one line of log and its own exit
    code."""
    with launched(client, image, run_dir, record) as (id, _, _):
        exit_code, text = ended(client, id)

    assert exit_code == code
    assert text.startswith(f"fngate replica: {said}")
    assert text.count("\n") == 1
