"""Handlers in real replicas: what they are given, and what is said when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.cli.bundle_files import collect
from tests.support import models
from tests.support.server import serving

JSON = 'schema = 1\n[input.text]\nkind = "json"\n'
WORDS = b"""
import json
import numpy as np

def load(ctx):
    return json.loads((ctx.folder / "vocab" / "words.json").read_text())

def predict(inputs, ctx):
    number = ctx.state[inputs["text"]]
    return ctx.run({"x": np.full((1, 4), number, np.float32)})
"""


async def test_a_handler_beside_a_model_gets_json_and_its_files(tmp_path: Path) -> None:
    """What fnctl collects of a handler's folder is what it reads; JSON comes as it is, also on a
    model that is prepared and called cold; an unknown word is told with its line."""
    folder = tmp_path / "words"
    (folder / "vocab").mkdir(parents=True)
    models.add_one(folder)
    (folder / "function.toml").write_text(JSON + '[sample]\ntext = "three"\n')
    (folder / "handler.py").write_bytes(WORDS)
    (folder / "vocab" / "words.json").write_text('{"three": 3}')
    files = {file.path: (folder / file.path).read_bytes() for file in collect(folder).bundle.files}
    manifest = files.pop("function.toml").decode()

    async with serving(tmp_path) as server:
        await server.deploy(files, name="words", manifest=manifest)
        good = await server.call("words", {"inputs": {"text": "three"}})
        bad = await server.call("words", {"inputs": {"text": "four"}})

    assert good.json()["outputs"] == {"y": [[4.0, 4.0, 4.0, 4.0]]}
    assert (bad.status, bad.problem["detail"]) == (
        500,
        "KeyError: 'four' (handler.py:9 in predict)",
    )


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("async def predict(inputs, ctx): return {}", "handler.py predict is a coroutine"),
        ("def predict(inputs, ctx):\n    yield {}", "handler.py predict is a generator"),
        (
            "import threading\ndef predict(inputs, ctx):\n    threading.Event().wait(0.3)\n"
            "    return {}",
            "the run of an input of zeros took ",
        ),
    ],
)
async def test_a_handler_that_can_never_answer_is_not_deployed(
    tmp_path: Path, handler: str, text: str
) -> None:
    """It is refused by name, also without a sample, and takes no traffic."""
    manifest = f'{JSON}[runtime]\nengine = "python"\n[limits]\ntimeout_s = 0.1\n'
    async with serving(tmp_path) as server:
        answer = await server.try_deploy(
            {"handler.py": handler.encode()}, name="f", manifest=manifest
        )
        assert (await server.call("f", {"inputs": {}})).status == 404
    assert text in answer.json()["error"]["detail"]
