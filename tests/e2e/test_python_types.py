"""Types of a Python function reach its description, its OpenAPI document and fnctl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from tests.support.browser import need_browser, viewing
from tests.support.described import check_answer, described_routes
from tests.support.package_index import PackageIndex, package_index
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HANDLER = """
from collections.abc import Iterator
from typing import Literal
import msgspec

class Item(msgspec.Struct):
    price: float
    next: "Item | None" = None

def predict(item: Item, name: str, mode: Literal["a", "b"] = "a", data: bytes = b"",
            keep: bool = False) -> Iterator[str]:
    if name == "fail":
        raise KeyError("c")
    yield f"{name} {item.price} {mode} {len(data)} {keep}"
"""
PLAIN = "def predict(text: str): return {'said': text}"
HOSTILE = """
import python_runner.program as program
program.describe = lambda handler, imports: %s
def predict(text: str): return {"said": text}
"""
SAID = (
    b'{"signature": {"predict": "p", "form": "def", "content_types": []}, "schema": {"inputs": %b}}'
)


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """An index with msgspec as it is installed here."""
    with package_index() as index:
        index.add_installed("msgspec")
        yield index


def function(folder: Path, name: str, handler: str) -> str:
    """Write the folder of a function; return its path."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "function.toml").write_text(f'schema = 1\nname = "{name}"\n[python]\n')
    (path / "handler.py").write_text(handler)
    return str(path)


async def got(server: ServerProcess, path: str) -> Any:
    """Return the JSON that a path answers."""
    async with server.session() as session, session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_types_reach_every_place(tmp_path: Path, index: PackageIndex) -> None:
    """Description, document, fnctl, streams and forms; each revision has its own, also after a
    restart, a rollback and the restore of a backup."""
    config = {"FN_UV_CONFIG": str(index.config(tmp_path))}
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    path = function(tmp_path, "typed", HANDLER)
    with server_process(data, environment=config) as server:
        told = server.fnctl("deploy", path, "--trust")
        assert "takes   predict(item: handler.Item, name: str, mode: " in told.stdout
        assert "-i 'item={\"price\": 1.0}' -i name=text" in told.stderr
        assert "curl -N http" in told.stderr
        await check_described(server)
        check_invoked(server, tmp_path)
        function(tmp_path, "typed", PLAIN)
        assert server.fnctl("deploy", path, "--trust").returncode == 0
        assert (await got(server, "/fn/typed"))["predict"] == "predict(text: str)"
        assert server.fnctl("backup", str(copy)).returncode == 0
    with server_process(data, environment=config) as server:
        assert (await got(server, "/fn/typed"))["predict"] == "predict(text: str)"
        assert (await got(server, "/fn/typed@1"))["form"] == "generator"
        assert server.fnctl("rollback", "typed").returncode == 0
        await check_described(server)
    done = server.fnctl("restore", str(copy), "--data", str(data))
    assert done.returncode == 0, done.stderr
    with server_process(data, environment=config) as server:
        assert (await got(server, "/fn/typed"))["predict"] == "predict(text: str)"
        assert (await got(server, "/fn/typed@1"))["form"] == "generator"


async def check_described(server: ServerProcess) -> None:
    """Check the description and the document of the first revision."""
    found = await got(server, "/fn/typed")
    assert found["kind"] == "http"
    assert found["predict"].startswith("predict(item: handler.Item, name: str, ")
    assert found["schema"]["inputs"]["required"] == ["item", "name"]
    assert found["schema"]["$defs"]["Item"]["properties"]["next"]["anyOf"][0] == {
        "$ref": "#/$defs/Item"
    }
    assert found["no_schema"] == ""
    document = await got(server, "/fn/typed/openapi.json")
    validate(document)
    post = document["paths"]["/fn/typed"]["post"]
    form = post["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["data"]["format"] == "binary"
    assert "text/event-stream" in post["responses"]["200"]["content"]
    assert (await got(server, "/admin/v1/functions/typed"))["schema"] == found["schema"]
    async with server.session() as session:
        routes = described_routes()
        for path, route in (
            ("/fn/typed", "/fn/{name}"),
            ("/admin/v1/functions/typed", "/admin/v1/functions/{name}"),
            ("/admin/v1/functions/typed/revisions", "/admin/v1/functions/{name}/revisions"),
        ):
            async with session.get(path) as answer:
                body = await answer.read()
                check_answer(routes[f"GET {route}"], answer.status, answer.content_type, body)
        call = {"inputs": {"item": {"price": 1}, "name": "fail"}}
        async with session.post("/fn/typed", json=call) as answer:
            assert answer.status == 500
            assert not [name for name in answer.headers if "traceback" in name.lower()]
        host = {"Host": f"typed.localhost:{server.url.rpartition(':')[2]}"}
        async with session.post("/", json=call, headers=host) as answer:
            assert answer.status == 500, await answer.text()
            assert not [name for name in answer.headers if "traceback" in name.lower()]


def check_invoked(server: ServerProcess, folder: Path) -> None:
    """Check what fnctl sends and says."""
    (folder / "x.bin").write_bytes(b"1234")
    item = ("-i", 'item={"price": 2.5}')
    one = server.fnctl("invoke", "typed", *item, "-i", "name=5", "-i", "keep=true")
    assert one.stdout == "data: 5 2.5 a 0 True\n\n"
    form = server.fnctl(
        "invoke", "typed", *item, "-i", "name=5", "-i", f"data=@{folder}/x.bin", "-i", "mode=b"
    )
    assert form.stdout == "data: 5 2.5 b 4 False\n\n", form.stderr
    for words, complaint in (
        ((), "fnctl invoke typed -i item=JSON -i name=TEXT [-i mode=a|b] [-i data=@FILE]"),
        (("-i", "nam=5"), "did you mean 'name'?"),
        ((*item, "-i", "name=a", "-i", "keep=maybe"), "expected true or false, got 'maybe'"),
    ):
        refused = server.fnctl("invoke", "typed", *words)
        assert (refused.returncode, complaint in refused.stderr) == (2, True), refused.stderr
    shown = server.fnctl("show", "typed").stdout
    assert "takes predict(item: handler.Item, name: str" in shown
    assert 'one of "a", "b"' in shown


async def test_the_playground_has_a_field_for_each_input(
    tmp_path: Path, index: PackageIndex
) -> None:
    """What does not fit is told beside its field; a file goes as a form; a stream is shown."""
    need_browser()
    config = {"FN_UV_CONFIG": str(index.config(tmp_path))}
    with server_process(tmp_path / "data", environment=config) as server:
        path = function(tmp_path, "typed", HANDLER)
        assert server.fnctl("deploy", path, "--trust").returncode == 0
        async with viewing(f"{server.url}/ui/#key={server.token}") as view:
            page = view.page
            await page.goto(f"{server.url}/ui/#/fn/typed")
            await page.get_by_label("item JSON", exact=True).fill("2.5")
            await page.get_by_label("name a text", exact=True).fill("5")
            await page.get_by_label("keep true or false, false if empty").select_option("true")
            await page.get_by_label("item JSON", exact=True).fill("{")
            await page.get_by_role("button", name="Send").click()
            await page.get_by_text("expected JSON, got {").wait_for()
            await page.get_by_label("item JSON", exact=True).fill('{"price": 2.5}')
            file = {"name": "x.bin", "mimeType": "a/b", "buffer": b"1234"}
            await page.get_by_label("Pick a file for data").set_input_files(file)
            assert await view.faults() == []
            await page.get_by_role("button", name="Send").click()
            await page.locator(".play-events", has_text="5 2.5 a 4 True").wait_for()
            assert "-F data=@x.bin -F" in await page.get_by_text("curl -N").first.inner_text()
            assert view.complaints == []


async def test_a_hostile_description_is_left_out(tmp_path: Path, index: PackageIndex) -> None:
    """The deploy says why; the function works, and nothing else of it is shown."""
    config = {"FN_UV_CONFIG": str(index.config(tmp_path))}
    with server_process(tmp_path / "data", environment=config) as server:
        for name, said, why in (
            ("deep", """b'{"a":' * 10000""", "cannot be read"),
            ("none", "1 / 0", "expected 200, got 500"),
            ("refers", repr(SAID % b'{"$ref": "http://a/b"}'), "expected #/$defs/ and one of"),
            ("raises", "'no bytes'", ""),
        ):
            told = server.fnctl("deploy", function(tmp_path, name, HOSTILE % said), "--trust")
            assert told.returncode == 0, told.stderr
            assert why in told.stdout
            found = await got(server, f"/fn/{name}")
            assert (found["schema"], why in found["no_schema"]) == (None, True)
            validate(await got(server, f"/fn/{name}/openapi.json"))
            called = server.fnctl("invoke", name, "-i", "text=a")
            assert called.stdout == 'said  "a"\n', called.stderr
