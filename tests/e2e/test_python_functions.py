"""Tests of Python functions: packages from an index, calls, redeploys, what they cannot write."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chaos.footprint import until
from tests.support.own_engine import await_condition
from tests.support.package_index import PackageIndex, make_wheel, package_index
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MANIFEST = """schema = 1
[python]
[python.env]
GREETING = "hello"
[sample]
text = "a"
"""
HANDLER = """
import ctypes, glob, os, sys
import greeter

def predict(text: str, times: int = 1, upload: bytes = b""):
    if text == "stream":
        return stream(times)
    if text == "fail":
        raise KeyError("c")
    if text == "write":
        return {"tried": tried()}
    return {"said": f"{os.environ['GREETING']} {text * times} {greeter.V} {len(upload)}"}

def stream(times):
    for number in range(times):
        yield {"number": number}

def tried():
    # Attempts to change what is shared, by whatever way: those that succeeded, and the files seen.
    packages = os.path.realpath(os.path.dirname(greeter.__file__))
    root = os.path.dirname(os.path.dirname(packages))
    data = os.path.dirname(root)
    kinds = {
        "packages": [packages + "/greeter.py"],
        "environments": [root + "/.build.lock", os.path.dirname(packages) + "/lock.json"],
        "cache": glob.glob(root + "/.cache/**/greeter.py", recursive=True),
        "runner": [os.path.realpath(sys.modules["__main__"].__file__)],
        "bundles": glob.glob(data + "/replicas/*/handler.py"),
        "own": [os.environ["FN_BUNDLE"] + "/handler.py"],
        "stored": glob.glob(data + "/blobs/*/*")[:9] + glob.glob(data + "/blobs/*")[:9],
    }
    libc, here = ctypes.CDLL(None), os.getcwd()
    for path in {os.path.dirname(one) for ones in kinds.values() for one in ones} | {root}:
        libc.umount2(path.encode(), 2)
        libc.mount(b"none", path.encode(), None, 32 | 4096, None)
    ways = (
        lambda path: os.chmod(path, 0o777),
        lambda path: open(path, "ab").close(),
        lambda path: open(os.path.dirname(path) + "/new", "xb").close(),
        lambda path: os.truncate(path, 0),
        lambda path: os.utime(path),
        lambda path: os.rename(path, path + "~"),
        lambda path: os.unlink(path),
        lambda path: os.symlink("x", path + "~"),
        lambda path: os.link(path, here + "/linked"),
        lambda path: os.setxattr(path, "user.x", b"x"),
    )
    changed = []
    for kind, paths in kinds.items():
        seen = [path for path in paths if os.path.isfile(path)]
        # By a process of another function, too, which has other mounts.
        seen += [one for path in seen[:1] for one in glob.glob("/proc/[0-9]*/root" + path)
                 if data in open(one.partition("/root/")[0] + "/cmdline").read()]
        kinds[kind] = len(seen)
        for path in seen:
            changed += [f"{path}: {number}" for number, way in enumerate(ways) if works(way, path)]
    return {"changed": changed, "seen": kinds}

def works(way, path):
    try:
        way(path)
    except OSError:
        return False
    return True
"""


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """An index with msgspec as it is installed here, and a small package."""
    with package_index() as index:
        index.add_installed("msgspec")
        index.add("greeter")
        yield index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data and functions."""
    return tmp_path_factory.mktemp("python")


@pytest.fixture(scope="module")
def server(folder: Path, index: PackageIndex) -> Iterator[ServerProcess]:
    """A server whose packages come from the index."""
    config = {"FN_UV_CONFIG": str(index.config(folder))}
    with server_process(folder / "data", "--cpu-slots", "2", environment=config) as server:
        yield server


def function(folder: Path, name: str, handler: str = HANDLER, needs: str = "greeter\n") -> str:
    """Write the folder of a function; return its path."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "function.toml").write_text(f'name = "{name}"\n{MANIFEST}')
    (path / "handler.py").write_text(handler)
    (path / "requirements.txt").write_text(needs)
    return str(path)


def deployed(server: ServerProcess, path: str) -> dict[str, Any]:
    """Deploy a function, which must succeed; return the result."""
    done: dict[str, Any] = server.fnctl_json("deploy", path, "--trust")
    return done["result"]


async def called(server: ServerProcess, name: str, data: Any = None, **inputs: Any) -> Any:
    """Call a function with a form or with JSON; return the outputs of its answer."""
    body = {"json": {"inputs": inputs}} if data is None else {"data": data}
    async with server.session() as session, session.post(f"/fn/{name}", **body) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["outputs"]


async def test_a_function_with_packages_is_called_in_every_form(
    server: ServerProcess, folder: Path, index: PackageIndex
) -> None:
    """JSON, a form with a file, and a stream; errors name the line; our own paths are denied."""
    result = deployed(server, function(folder, "greet"))
    assert result["revision"] == "greet@1"
    assert "/files/greeter/greeter-1.0-py3-none-any.whl" in index.asked
    assert await called(server, "greet", text="a", times=2) == {"said": "hello aa 1.0 0"}
    form = aiohttp.FormData({"text": "b"})
    form.add_field("upload", b"1234", filename="x.bin")
    assert await called(server, "greet", form) == {"said": "hello b 1.0 4"}
    async with server.session() as session:
        stream = {"inputs": {"text": "stream", "times": 3}}
        async with session.post("/fn/greet", json=stream) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.text()).count("data: ") == 3
        async with session.post("/fn/greet", json={"inputs": {"text": "fail"}}) as answer:
            problem = await answer.json()
            assert (answer.status, problem["code"]) == (500, "function_failed")
            assert problem["detail"].startswith("KeyError: 'c' (handler.py:")
            assert "Fn-Traceback" not in answer.headers
        async with session.get("/fn/greet/.fngate/description") as answer:
            assert (answer.status, (await answer.json())["code"]) == (403, "path_denied")
    assert "raise KeyError" in server.fnctl("logs", "greet").stdout


async def test_a_redeploy_with_equal_needs_asks_no_index(
    server: ServerProcess, folder: Path, index: PackageIndex
) -> None:
    """Another function, and another handler, with equal needs share lock and folder."""
    deployed(server, function(folder, "first"))
    assert concurrency(server, "first") == 1
    asked, there = len(index.asked), folders(server)
    deployed(server, function(folder, "second"))
    assert deployed(server, function(folder, "first", f"{HANDLER}\n"))["revision"] == "first@2"
    assert (len(index.asked), folders(server)) == (asked, there)
    handler = "import greeter\nasync def predict(text: str): return {'said': text}"
    deployed(server, function(folder, "waiting", handler))
    assert concurrency(server, "waiting") == 32
    assert await called(server, "waiting", text="a") == {"said": "a"}


def test_a_deploy_that_is_refused_changes_nothing(
    server: ServerProcess, folder: Path, index: PackageIndex
) -> None:
    """A package that no index has, a line that uv must not get, a failing sample, no --trust, and
    requirements that nothing would install."""
    asked, before = len(index.asked), folders(server)
    for needs, told in (
        ("no-such-package\n", "no-such-package was not found"),
        ("-r /etc/passwd\n", "requirements.txt:1: expected a package"),
    ):
        refused = server.fnctl("deploy", function(folder, "bad", needs=needs), "--trust")
        assert (refused.returncode, told in refused.stderr) == (1, True), refused.stderr
    path = function(folder, "bad", HANDLER.replace('== "fail"', '!= "fail"'))
    assert "raise KeyError" in server.fnctl("deploy", path, "--trust").stderr
    assert "pass --trust" in server.fnctl("deploy", path).stderr
    (folder / "bad/function.toml").write_text('schema = 1\n[runtime]\nengine = "python"\n[input.a]')
    assert "expected [python] in place of" in server.fnctl("deploy", path, "--trust").stderr
    assert "bad" not in server.fnctl("ls").stdout
    assert folders(server) == before
    assert not [path for path in index.asked[asked:] if "passwd" in path]


async def test_packages_that_are_gone_are_installed_again_by_warm_alone(
    folder: Path, index: PackageIndex
) -> None:
    """A function starts after a restart of the server and from sleep, without the index. A call
    installs no packages, and says what does after one start that fails."""
    config = {"FN_UV_CONFIG": str(index.config(folder))}
    data, path = folder / "other", function(folder, "again")
    with server_process(data, environment=config) as server:
        deployed(server, path)
        asked = len(index.asked)
    with server_process(data, environment=config) as server:
        assert await called(server, "again", text="a") == {"said": "hello a 1.0 0"}
        assert server.fnctl("sleep", "again", "--force").returncode == 0
        assert await called(server, "again", text="a") == {"said": "hello a 1.0 0"}
        assert len(index.asked) == asked
        assert server.fnctl("sleep", "again", "--force").returncode == 0
        for environment in (data / "environments").glob("[0-9a-f]*"):
            environment.rename(environment.with_name(f".gone-{environment.name}"))
        question = {"inputs": {"text": "a"}}
        async with server.session() as session, session.post("/fn/again", json=question) as answer:
            assert answer.status == 503
            assert "fnctl warm again" in await answer.text()
        # The log is read in a thread of its own.
        await_condition(lambda: failed_starts(server) > 0, "no failed start is in the log")
        assert failed_starts(server) == 1
        assert folders(server) == set()
        (missing,) = server.fnctl_json("env", "ls")["items"]
        assert (missing["state"], missing["live"]) == ("missing", ["again@1"])
        assert "next: fnctl warm again" in server.fnctl("env", "ls").stderr
        warm = server.fnctl("warm", "again")
        assert warm.returncode == 0, warm.stderr
        assert await called(server, "again", text="a") == {"said": "hello a 1.0 0"}
    (environment,) = (data / "environments").glob("[0-9a-f]*")
    environment.rename(environment.with_name(".gone-again"))
    with server_process(data, environment=config) as server:

        async def is_there() -> bool:
            return folders(server) == {environment.name}

        assert await until(is_there, 60.0)
        assert await called(server, "again", text="a") == {"said": "hello a 1.0 0"}


def test_environments_are_seen_and_removed(folder: Path, index: PackageIndex) -> None:
    """With the revisions that need them. What has the traffic keeps its own; an older revision has
    its own installed again by a rollback, and what nothing names goes."""
    config = {"FN_UV_CONFIG": str(index.config(folder))}
    index.add("other")
    with server_process(folder / "seen-data", environment=config) as server:
        deployed(server, function(folder, "seen"))
        (first,) = server.fnctl_json("env", "ls")["items"]
        refused = server.fnctl("env", "rm", first["id"][:8])
        assert refused.returncode == 1
        assert "is needed by seen@1; fnctl rm seen frees it" in refused.stderr
        deployed(server, function(folder, "seen", needs="greeter\nother\n"))
        assert server.fnctl("sleep", "seen", "--force").returncode == 0
        shown = server.fnctl_json("env", "show", first["id"][:8])
        assert (shown["functions"], shown["interpreter"][:2]) == (["seen@1"], "3.")
        assert [one["name"] for one in shown["packages"]] == ["greeter", "msgspec"]
        assert server.fnctl_json("env", "rm", "--unused") == {"removed": []}
        done = server.fnctl("env", "rm", first["id"][:8])
        assert "installed again with the traffic of seen@1" in done.stdout, done.stderr
        assert server.fnctl("rollback", "seen").returncode == 0
        found = server.fnctl_json("env", "ls")["items"]
        assert {one["state"] for one in found} == {"ready"}
        assert server.fnctl("rm", "seen", "--yes").returncode == 0
        removed = server.fnctl_json("env", "rm", "--unused")["removed"]
        assert {one["removed"] for one in removed} == {one["id"] for one in found}
        assert folders(server) == set()


SERVER = """
import http.server, sys
import greeter

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(greeter.V.encode())

def main():
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def test_a_command_of_a_package_runs_beside_it(
    server: ServerProcess, folder: Path, index: PackageIndex
) -> None:
    """A console script of the packages, as uvicorn is one, is found and imports them."""
    files = {"web.py": SERVER.encode()}
    index.add("web", files=files, scripts={"serve-web": "web:main"}, requires=["greeter"])
    path = function(folder, "web", needs="web\n")
    (folder / "web/function.toml").write_text(
        'schema = 1\nname = "web"\n[python]\n[server]\ncommand = "serve-web ${PORT}"\n'
    )
    deployed(server, path)
    assert concurrency(server, "web") == 32
    async with server.session() as session, session.get("/fn/web/") as answer:
        assert (answer.status, await answer.text()) == (200, "1.0")


async def test_a_deploy_is_cancelled_while_an_index_is_slow(
    server: ServerProcess, folder: Path, index: PackageIndex
) -> None:
    """Its phase tells what it waits for; nothing is left."""
    index.add("slow")
    asked, goes_on = threading.Event(), threading.Event()

    def before(path: str) -> None:
        if path == "/simple/slow/":
            asked.set()
            goes_on.wait(60)

    index.before, there = before, folders(server)
    try:
        path = function(folder, "slow", needs="greeter\nslow\n")
        operation = server.fnctl_json("deploy", path, "--trust", "--no-wait")
        assert await asyncio.to_thread(asked.wait, 60)
        async with server.session() as session:
            place = f"/admin/v1/operations/{operation['id']}"
            async with session.get(place) as answer:
                assert (await answer.json())["phase"].startswith("lock")
            async with session.delete(place) as answer:
                assert (await answer.json())["state"] == "cancelled", await answer.text()
    finally:
        goes_on.set()
        index.before = lambda _: None
    assert folders(server) == there
    assert not list((server.data / "environments").glob(".resolve-*"))
    assert "slow" not in server.fnctl("ls").stdout


def concurrency(server: ServerProcess, name: str) -> int:
    """Return how many calls a replica of a function takes at once."""
    return int(server.fnctl_json("show", name)["exchange"]["concurrency"])


def failed_starts(server: ServerProcess) -> int:
    """Return the number of failed starts in the server's log."""
    return sum("a replica could not be started" in line for line in server.log)


def folders(server: ServerProcess) -> set[str]:
    """Return the names of the environments."""
    return {path.name for path in (server.data / "environments").glob("[0-9a-f]*")}


@pytest.mark.parametrize("network", ["none", "egress"])
async def test_own_wheels_and_networks(
    server: ServerProcess, folder: Path, index: PackageIndex, network: str
) -> None:
    """A wheel of the folder is installed; in either network a function changes neither packages nor
    their cache, the runner, its own files, nor those of others."""
    name = f"own-{network}"
    path = function(folder, name, HANDLER.replace("import greeter", "import greeter, mine"))
    (folder / name / "function.toml").write_text(
        f'name = "{name}"\n' + MANIFEST.replace("[python]\n", f'[python]\nnetwork = "{network}"\n')
    )
    (folder / name / "requirements.txt").write_text("greeter\nmine\n")
    shutil.rmtree(folder / name / "wheels", ignore_errors=True)
    (folder / name / "wheels").mkdir()
    file, data = make_wheel("mine")
    (folder / name / "wheels" / file).write_bytes(data)
    deployed(server, path)
    assert await called(server, name, text="a") == {"said": "hello a 1.0 0"}
    deployed(server, function(folder, "beside"))
    assert await called(server, "beside", text="a") == {"said": "hello a 1.0 0"}
    tried = (await called(server, name, text="write"))["tried"]
    assert tried["changed"] == []
    assert min(tried["seen"].values()) > 0, tried["seen"]
    assert tried["seen"]["bundles"] > 1
