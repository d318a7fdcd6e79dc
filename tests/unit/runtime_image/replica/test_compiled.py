"""Compiled models in whole replica processes; the test plays their manager and a gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runtime_image.contract.compiled import (
    COMPILED_PART,
    FOLDER,
    CompiledModel,
    compiled_from_json,
)
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec, Part
from tests.support import compiled as compiling
from tests.support import models
from tests.support.blocking import BlockingLink
from tests.support.doses import amount
from tests.support.hostile_caches import Attack
from tests.unit.runtime_image.replica.test_main import Play, bind

pytestmark = pytest.mark.slow

HOSTILE_UPGRADES = amount(20, 160)
HOSTILE_STARTS = amount(2, 40)


@contextmanager
def playing(model: Path) -> Iterator[Play]:
    """Yield a run folder, whose path is short enough for sockets, with a copy of `model`."""
    with TemporaryDirectory(prefix="fn-") as name:
        (Path(name) / model.name).write_bytes(model.read_bytes())
        play = Play(Path(name))
        try:
            yield play
        finally:
            play.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.affine(tmp_path, offset=1)


def body(rows: int) -> bytes:
    return json.dumps({"inputs": {"x": [[1.0] * models.WIDTH] * rows}}).encode()


def ask(gateway: BlockingLink, id: int, rows: int) -> tuple[Kind, Any]:
    gateway.request(id, body=body(rows))
    frame = gateway.answer()
    return frame.kind, json.loads(frame.body)


def fetch(gateway: BlockingLink, aux: int) -> bytes:
    gateway.send(Kind.FETCH, aux + 1, aux=aux)
    data = b""
    while (frame := gateway.next()).kind is Kind.PART:
        data += frame.body
    assert frame.kind is Kind.END
    return data


def upgrade(link: BlockingLink, compiled: CompiledModel) -> dict[str, Any]:
    link.send(Kind.UPGRADE, body=json.dumps({"compiled": asdict(compiled)}).encode())
    while (frame := link.next()).kind is not Kind.UPGRADED:
        pass
    result: dict[str, Any] = json.loads(frame.body)
    return result


def start(play: Play, spec: ModelSpec) -> tuple[BlockingLink, dict[str, Any]]:
    link, _ = play.greet(engine="onnx")
    bind(link, spec)
    loaded: dict[str, Any] = json.loads(link.next(Kind.LOADED).body)
    return link, loaded


def test_a_build_answers_ping_and_sends_what_replicas_then_serve(model: Path) -> None:
    """From the build to the cold start of the compiled model: PING is answered while it compiles,
    the files are fetched by number, and a new replica serves with them alone."""
    spec = compiling.spec(model, build=replace(compiling.ORDER, delay_s=0.3))
    with playing(model) as play:
        link, _ = play.greet(role="build", engine="onnx")
        bind(link, spec, role="build")
        loaded = json.loads(link.next(Kind.LOADED).body)
        gateway = play.gateway()
        gateway.send(Kind.FETCH, 1, aux=Part.DESCRIPTION)
        link.send(Kind.PING)
        pong = link.next(Kind.PONG)
        described = json.loads(gateway.next(Kind.PART).body)
        gateway.next(Kind.END)
        compiled = compiled_from_json(described["compiled"])
        files = [fetch(gateway, COMPILED_PART + n) for n in range(len(compiled.files))]
        link.send(Kind.DRAIN)
        end = play.end()

    assert (loaded["session"], loaded["report"]) == ("original", {"prepares": True})
    assert pong.aux == 0
    assert described["why_not"] == ""
    assert [len(data) for data in files] == [file.size for file in compiled.files]
    assert end == (0, "")

    with playing(model) as play:
        (play.run_dir / FOLDER).mkdir()
        for file, data in zip(compiled.files, files, strict=True):
            (play.run_dir / FOLDER / file.name).write_bytes(data)
        link, loaded = start(play, compiling.serving(spec, compiled))
        gateway = play.gateway()

        assert (loaded["session"], "not_compiled" in loaded) == ("compiled", False)
        assert ask(gateway, 1, 8)[1]["outputs"]["y"] == [[2.0] * models.WIDTH] * 8
        kind, refused = ask(gateway, 2, 9)
        assert (kind, refused["code"]) == (Kind.FAILED, "bad_input")
        assert "from [1, 4] to [8, 4], got [9, 4]" in refused["message"]
        assert ask(gateway, 3, 1)[0] is Kind.RESPONSE


def test_a_build_dies_at_any_time(model: Path) -> None:
    """TERM in the middle of the compilation ends it at once, with nothing left to tear down."""
    spec = compiling.spec(model, build=replace(compiling.ORDER, delay_s=600.0))
    with playing(model) as play:
        link, _ = play.greet(role="build", engine="onnx")
        bind(link, spec, role="build")
        link.next(Kind.LOADED)
        link.send(Kind.PING)
        link.next(Kind.PONG)
        play.term()

        assert play.end() == (0, "")


def test_an_upgrade_under_load_fails_no_call(model: Path) -> None:
    """Joined calls go on while the session is exchanged; afterwards the manager is informed of it
    also after a reconnect, and a second upgrade to the same key is done at once."""
    spec = compiling.spec(model)
    with playing(model) as play:
        compiled = compiling.compile_in(play.run_dir, spec)
        link, loaded = start(play, compiling.serving(spec, None))
        gateway = play.gateway()
        answers: list[Kind] = []
        upgraded = threading.Event()

        def call() -> None:
            id, more = 0, 100
            while more:
                ids = range(id + 1, id + 9)
                id += 8
                gateway.request(*ids, body=body(1))
                answers.extend(gateway.answer().kind for _ in ids)
                more -= upgraded.is_set()

        caller = threading.Thread(target=call)
        caller.start()
        result = upgrade(link, compiled)
        upgraded.set()
        caller.join(60)
        again = upgrade(link, compiled)
        link.close()
        hello = json.loads(play.accept().next(Kind.HELLO).body)

        assert (loaded["session"], result, again) == (
            "original",
            {"session": "compiled", "reason": ""},
            {"session": "compiled", "reason": ""},
        )
        assert hello["loaded"]["session"] == "compiled"
        assert set(answers) == {Kind.RESPONSE}
        assert len(answers) >= 800
        assert ask(gateway, 2**20, 9)[1]["code"] == "bad_input"


def test_a_malformed_upgrade_costs_the_link_alone(model: Path) -> None:
    """The replica drops the connection, connects anew, and serves on."""
    with playing(model) as play:
        link, _ = start(play, compiling.serving(compiling.spec(model), None))
        link.send(Kind.UPGRADE, body=b'{"compiled": {"key": 7}}')
        with pytest.raises(EOFError):
            link.last()

        assert json.loads(play.accept().next(Kind.HELLO).body)["loaded"]["session"] == "original"
        assert ask(play.gateway(), 1, 9)[0] is Kind.RESPONSE


def test_hostile_files_reach_no_session_of_a_replica(model: Path) -> None:
    """By UPGRADE, one after the other while calls are answered: each is refused with a reason.
    A replica may die of one, and is then started anew; it never serves with it."""
    spec = compiling.spec(model)
    with playing(model) as play:
        compiled = compiling.compile_in(play.run_dir, spec)
        attack = Attack(play.run_dir, compiled)
        link, _ = start(play, compiling.serving(spec, None))
        gateway = play.gateway()
        for index in range(HOSTILE_UPGRADES):
            result = upgrade(link, attack.prepare(index))
            attack.restore()

            assert result["session"] == "original"
            assert result["reason"]
            assert ask(gateway, index + 1, 9)[1]["outputs"]["y"] == [[2.0] * models.WIDTH] * 9
        assert upgrade(link, compiled) == {"session": "compiled", "reason": ""}


@pytest.mark.parametrize("index", range(HOSTILE_STARTS))
def test_hostile_files_reach_no_session_of_a_start(model: Path, index: int) -> None:
    """A replica that finds them at its start serves with the ordinary session."""
    spec = compiling.spec(model)
    with playing(model) as play:
        compiled = compiling.compile_in(play.run_dir, spec)
        attack = Attack(play.run_dir, compiled)
        _, loaded = start(play, compiling.serving(spec, attack.prepare(7 * index)))

        assert loaded["session"] == "original"
        assert loaded["not_compiled"]
        assert ask(play.gateway(), 1, 9)[0] is Kind.RESPONSE


@pytest.mark.parametrize("kind", ["cpu"])
def test_a_trial_refuses_a_compiler_that_is_not_there(model: Path, kind: str) -> None:
    """A function whose owner requires TensorRT fails its deploy instead of running without it."""
    spec = compiling.spec(model, build=replace(compiling.ORDER, compiler="tensorrt"))
    with playing(model) as play:
        link, _ = play.greet(role="trial", engine="onnx", device_kind=kind)
        bind(link, spec, role="trial", device_kind=kind)
        failed = json.loads(link.next(Kind.LOAD_FAILED).body)

    assert failed["reason"] == (
        'engine = "tensorrt": tensorrt compiles for cuda, not for cpu; with engine = "auto" the'
        " model is served without it"
    )
