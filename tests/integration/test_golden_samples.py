"""Golden samples of a real server, whose answers a file corrupts."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from tests.support import chat_server
from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process

CHECKS = 'fngate_golden_samples_total{function="chat",namespace="default",verdict="%s"}'


def row(server: ServerProcess) -> dict[str, Any]:
    """Return the row of the function."""
    (found,) = server.fnctl_json("ls")["items"]
    shown: dict[str, Any] = found
    return shown


def metrics(server: ServerProcess) -> str:
    """Return the exposition."""
    request = urllib.request.Request(f"{server.url}/metrics", headers=server.headers)
    with urllib.request.urlopen(request) as answer:
        text: bytes = answer.read()
    return text.decode()


def checked(server: ServerProcess, verdict: str) -> bool:
    """Return whether a check of the function had this verdict."""
    text, name = metrics(server), CHECKS % verdict
    return f"{name} " in text and f"{name} 0.0" not in text


def test_a_wrong_answer_is_shown_until_it_is_right_again(tmp_path: Path) -> None:
    """In `why`, in `ls`, in the metric and in the log, also by the next server, which adopts the
    replica. Checks are no calls."""
    switch = tmp_path / "switch"
    with server_process(tmp_path / "data") as server:
        health = '[health]\nsample_every_s = 1\nhang = "report"'
        found = chat_server.deploy(server, tmp_path, "chat", "--corrupt", str(switch), more=health)
        golden = found["result"]["profile"]["golden"]["sample"]
        assert (golden["rule"], golden["request"]["path"]) == ("logprobs", "/v1/completions")
        assert golden["answer"]["prompt"] == [], "the right answer itself is not shown"
        switch.touch()
        assert server.fnctl("warm", "chat").returncode == 0

        await_condition(lambda: row(server)["golden"] == "wrong", "no wrong answer was found")
        assert "warm: wrong answers" in server.fnctl("ls").stdout
        told = "answers its golden sample wrong: expected log probabilities of the prompt within"
        why = server.fnctl("why", "chat").stdout
        assert why.count(told) == 3, "the state, and two decisions"
        assert checked(server, "wrong")
        assert any("a golden sample is answered wrong" in line for line in server.log)

        server.kill()
        server.start()
        await_condition(lambda: row(server)["golden"] == "wrong", "the adopted one was not asked")
        switch.unlink()
        await_condition(lambda: row(server)["golden"] == "right", "it stayed wrong")
        why = server.fnctl("why", "chat").stdout
        assert "answers its golden sample right again" in why
        assert row(server)["reason"] != ""
        assert "wrong" not in row(server)["reason"]
        assert checked(server, "right")
        assert 'fngate_requests_total{function="chat"' not in metrics(server)


def test_a_wrong_server_is_replaced(tmp_path: Path) -> None:
    """It ends, though nobody calls it; the next one answers right."""
    switch = tmp_path / "switch"
    with server_process(tmp_path / "data") as server:
        more = "[health]\nsample_every_s = 1"
        chat_server.deploy(server, tmp_path, "chat", "--corrupt", str(switch), more=more)
        switch.touch()
        assert server.fnctl("warm", "chat").returncode == 0

        await_condition(lambda: row(server)["state"] == "cold", "it was not replaced")
        switch.unlink()
        assert server.fnctl("warm", "chat").returncode == 0
        await_condition(lambda: row(server)["golden"] == "right", "it was not asked")

        replaced = 'fngate_replicas_replaced_total{function="chat",namespace="default",reason='
        assert f'{replaced}"wrong_sample"}} 1.0' in metrics(server)
        told = "was replaced: it answers its golden sample wrong: expected log probabilities"
        assert told in server.fnctl("why", "chat").stdout


def test_checks_keep_no_function_awake(tmp_path: Path) -> None:
    """It is asked each second, and sleeps after two."""
    with server_process(tmp_path / "data") as server:
        more = "[health]\nsample_every_s = 1\n[scaling]\nidle_s = 2"
        chat_server.deploy(server, tmp_path, "chat", more=more)
        assert server.fnctl("warm", "chat").returncode == 0
        await_condition(lambda: checked(server, "right"), "it was never asked")

        await_condition(lambda: row(server)["state"] == "cold", "it did not fall asleep")


def test_a_server_without_a_golden_sample_says_why(tmp_path: Path) -> None:
    """The deploy succeeds, and is not tried again for it."""
    with server_process(tmp_path / "data") as server:
        path = chat_server.bundle(tmp_path, "chat", api='base = "/elsewhere"')
        done = server.fnctl("deploy", str(path), "--trust")

        assert done.returncode == 0, done.stderr
        assert "no golden sample: /elsewhere/completions: expected 200, got 404" in done.stdout
        table = path / "function.toml"
        table.write_text(f"{table.read_text()}\n[server.env]\nOTHER = 'x'\n")
        again = server.fnctl("deploy", str(path), "--trust")
        assert again.returncode == 0, again.stderr
