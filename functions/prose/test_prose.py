"""Tests of the committed weights, of the handler's arithmetic, and of stream and page behind
fngate."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from playwright.async_api import expect

from functions.prose import handler, train
from tests.support.browser import WAIT_MS, browsing, need_browser, viewing
from tests.support.package_index import package_index
from tests.support.process_server import ServerProcess, server_process

BITS_MAX = 1.9
"""Most bits per character of sentences that were never trained on; without their order 4.4."""
WEIGHTS_MAX = 300 * 1024
PAGE = train.FOLDER / "page.html"


@pytest.fixture(scope="module")
def model() -> handler.Model:
    """The committed weights as the function reads them."""
    return handler.read_model(train.WEIGHTS)


def text_of(model: handler.Model, prompt: str, length: int, **more: Any) -> str:
    """Return the text that the function streams."""

    async def collect() -> str:
        context = SimpleNamespace(state=model)
        return "".join([one async for one in handler.predict(prompt, length, **more, ctx=context)])

    return asyncio.run(collect())


def test_it_guesses_sentences_it_never_saw() -> None:
    """The committed weights need at most 1.9 bits for a character of the held-out sentences."""
    _, held_out = train.sentences()

    assert len(held_out) == 92
    assert train.bits(train.read(train.WEIGHTS), held_out) <= BITS_MAX
    assert train.WEIGHTS.stat().st_size <= WEIGHTS_MAX


def test_plain_python_computes_the_same(model: handler.Model) -> None:
    """State and scores of the handler are those of NumPy after each character."""
    weights = train.read(train.WEIGHTS)
    state, expected = [0.0] * train.HIDDEN, np.zeros((1, train.HIDDEN), np.float32)
    for one in "\nA cold start":
        number = model.characters.find(one)
        state = handler.following(model, state, number)
        expected = train.step(weights, np.array([number]), expected)[0]
        assert np.allclose(state, expected[0], atol=1e-4)

    found = np.exp(handler.scores(model, state))
    assert np.allclose(found / found.sum(), train.guesses(weights, expected)[0], atol=1e-4)


def test_seed_and_temperature_decide_the_text(model: handler.Model) -> None:
    """Equal seeds give equal texts, others do not; 0 needs no seed; unknown characters are
    spaces."""
    one, same, other = (text_of(model, "A", 60, seed=seed) for seed in (1, 1, 2))
    assert len(one) == 60
    assert one == same != other
    assert text_of(model, "A", 20, temperature=0.0) == text_of(model, "A", 20, temperature=0.0)
    assert text_of(model, "é", 9, seed=3) == text_of(model, " ", 9, seed=3)
    assert handler.choose([0.0, 9.0, 1.0], 0.0, random.Random())  # noqa: S311 - no secret == 1


def test_training_learns_and_repeats() -> None:
    """A few steps with one seed give the same weights twice, and better ones than before."""
    _, held_out = train.sentences()
    first, second = train.train(steps=40), train.train(steps=40)

    assert all((first[name] == second[name]).all() for name in first)
    before = train.begin(len(train.characters()), train.SEED)
    assert train.bits(first, held_out[:4]) < train.bits(before, held_out[:4]) - 0.5


def test_written_weights_are_read_again(tmp_path: Path) -> None:
    """A file has each row within half a step of its scale, and both readers agree."""
    weights = train.begin(5, 1)
    train.write(weights, tmp_path / "weights.bin")

    read, model = train.read(tmp_path / "weights.bin"), handler.read_model(tmp_path / "weights.bin")

    for name, one in weights.items():
        assert np.abs(read[name] - one).max() <= np.abs(one).max() / 127 * 0.51
    assert np.allclose(model.state, read["state"], atol=1e-6)
    assert np.allclose(model.inputs, read["input"] + read["bias"], atol=1e-6)


def test_the_page_allows_its_own_script_and_style_alone() -> None:
    """The policy of the page has the hashes of what is in it, and nothing of another origin."""
    text = PAGE.read_text("utf-8")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    for kind in ("style", "script"):
        [inner] = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; connect-src 'self'; img-src data:; ")
    assert "://" not in text


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """fngate with the function deployed, whose only package comes from an index of the test."""
    folder = tmp_path_factory.mktemp("prose")
    with package_index() as index:
        index.add_installed("msgspec")
        config = {"FN_UV_CONFIG": str(index.config(folder))}
        with server_process(folder / "data", environment=config) as server:
            server.fnctl_json("deploy", str(train.FOLDER), "--trust")
            yield server


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_it_streams_in_each_form(gateway: ServerProcess, model: handler.Model) -> None:
    """Text, events and lines are one text; a wrong value is refused with its name."""
    inputs = {"prompt": "A cold ", "length": 30, "seed": 5}
    expected = await asyncio.to_thread(text_of, model, "A cold ", 30, seed=5)
    async with gateway.session() as session:

        async def ask(accept: str, **more: Any) -> tuple[int, str, str]:
            body = {"inputs": {**inputs, **more}}
            fields = {"Accept": accept}
            async with session.post("/fn/prose", json=body, headers=fields) as answer:
                return answer.status, answer.content_type, await answer.text()

        assert await ask("*/*") == await ask("text/plain") == (200, "text/plain", expected)
        _, kind, lines = await ask("application/x-ndjson")
        assert kind == "application/x-ndjson"
        assert len(lines.splitlines()) == 30
        _, kind, events = await ask("text/event-stream")
        assert kind == "text/event-stream"
        found = [one.replace("data: ", "") for one in events.split("\n\n")[:-1]]
        assert "".join(found) == expected
        status, _, problem = await ask("*/*", length=0)
        assert status == 400
        assert '"input":"length"' in problem


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_page_shows_the_stream_and_can_leave_it(
    gateway: ServerProcess, model: handler.Model
) -> None:
    """The text grows in the page at the function's own host, is the one of its seed, and ends where
    Stop is pressed; nothing is refused by the policy, and no other host is asked."""
    need_browser(dashboard=False)
    host = f"prose.localhost:{gateway.url.rpartition(':')[2]}"
    expected = await asyncio.to_thread(text_of, model, "A cold function ", 60, seed=7)
    async with browsing() as browser, viewing(f"http://{host}/", browser=browser) as view:
        # The policy of the page keeps even the test's own expressions out.
        send, second = view.page.locator("text=Send"), view.page.locator(".answered").nth(1)
        await view.page.fill("[name=seed]", "7")
        await view.page.fill("[name=length]", "60")
        await send.click()
        await expect(send).to_be_enabled(timeout=WAIT_MS)
        shown = await view.page.locator(".answered").text_content()
        assert shown == f"A cold function {expected}"

        await view.page.fill("[name=length]", "2000")
        await send.click()
        await expect(second).to_have_text(re.compile(".{40,}", re.DOTALL), timeout=WAIT_MS)
        await view.page.click("text=Stop")
        await expect(send).to_be_enabled(timeout=WAIT_MS)
        assert 40 < len(await second.text_content() or "") < 2000
        assert view.complaints == []
        assert view.hosts <= {host, ""}
