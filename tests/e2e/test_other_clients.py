"""Tests of /v1 by LiteLLM's proxy and by LangChain, which install much: `make test-clients`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.chaos.footprint import until
from tests.support.chat import answers
from tests.support.model_gate import ModelGate, model_gate
from tests.support.openai_calls import items
from tests.support.server_environment import environment_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("FN_TEST_CLIENTS" not in os.environ, reason="make test-clients runs it"),
]

REQUIREMENTS = Path(__file__).parent.parent / "support" / "clients"
SAID = "a gate that wakes its models [tokens=6] [rate=100]"
WANTED = "".join(answers.words_of(SAID, 6))
INSTALL_S = 300.0
START_S = 120.0
MASTER = f"sk-{secrets.token_hex(32)}"
"""Key of LiteLLM's clients: it does not start without."""
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="chat", base_url=sys.argv[1], api_key=sys.argv[2])
got = model.invoke(sys.argv[3])
streamed = "".join(piece.content for piece in model.stream(sys.argv[3]))
print(json.dumps([got.content, got.usage_metadata["output_tokens"], streamed]))
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelGate]:
    """A server with the function `chat`."""
    with model_gate(tmp_path_factory.mktemp("other"), 2, has_late=False) as made:
        yield made


@contextmanager
def litellm(programs: Path, folder: Path, gate: ModelGate) -> Iterator[tuple[int, Any]]:
    """Run LiteLLM's proxy in front of a server; yield its port and its process."""
    model = {"model": "openai/chat", "api_base": gate.base, "api_key": gate.key}
    configuration = {"model_list": [{"model_name": "chat", "litellm_params": model}]}
    (folder / "litellm.yaml").write_text(json.dumps(configuration))
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    words = [str(programs / "litellm"), "--config", "litellm.yaml", "--port", str(port)]
    quiet = {
        "LITELLM_MASTER_KEY": MASTER,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        [*words, "--host", "127.0.0.1"], cwd=folder, env={**os.environ, **quiet}
    )
    try:
        yield port, process
    finally:
        process.terminate()
        process.wait(30)


def answers_at(port: int) -> bool:
    """Return whether the proxy answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5):
            return True
    except OSError:
        return False


async def test_litellms_proxy_in_front(tmp_path: Path, gate: ModelGate) -> None:
    """A chat, a stream, and a message of Anthropic's API, which LiteLLM translates, pass through
    both; the first one wakes the function."""
    openai, anthropic = map(importlib.import_module, ("openai", "anthropic"))
    programs = environment_of(REQUIREMENTS / "litellm.txt", tmp_path / "environment", INSTALL_S)
    await gate.go_cold("chat")
    with litellm(programs, tmp_path, gate) as (port, process):

        async def is_up() -> bool:
            assert process.poll() is None
            return await asyncio.to_thread(answers_at, port)

        assert await until(is_up, START_S)
        near = f"http://127.0.0.1:{port}"
        talk: Any = [{"role": "user", "content": SAID}]
        async with openai.AsyncOpenAI(base_url=f"{near}/v1", api_key=MASTER) as client:
            got = await client.chat.completions.create(model="chat", messages=talk)
            streamed = await items(
                client.chat.completions.create(model="chat", messages=talk, stream=True)
            )
        async with anthropic.AsyncAnthropic(base_url=near, api_key=MASTER) as client:
            message = await client.messages.create(model="chat", max_tokens=50, messages=talk)

    assert got.choices[0].message.content == WANTED
    assert got.usage is not None
    assert got.usage.completion_tokens == 6
    pieces = [one["choices"][0]["delta"].get("content", "") for one in streamed if one["choices"]]
    assert "".join(pieces) == WANTED
    assert getattr(message.content[0], "text", "") == WANTED


async def test_langchain(tmp_path: Path, gate: ModelGate) -> None:
    """LangChain's ChatOpenAI gets an answer and a stream; the first call wakes the function."""
    programs = environment_of(REQUIREMENTS / "langchain.txt", tmp_path / "environment", INSTALL_S)
    await gate.go_cold("chat")
    words = [str(programs / "python"), "-c", LANGCHAIN, gate.base, gate.key, SAID]

    run = partial(subprocess.run, capture_output=True, text=True, timeout=START_S)
    done = await asyncio.to_thread(run, words)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [WANTED, 6, WANTED]
