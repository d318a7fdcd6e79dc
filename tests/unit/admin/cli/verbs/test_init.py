from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from admin.cli.dev.folder import read_folder
from admin.cli.main import app
from admin.cli.verbs.init import PLACEHOLDER, TEMPLATES, Template, write_template
from environments.needs import FILES, read_needs
from tests.support.function_runner import FunctionRunner

NEEDS = {
    Template.PLAIN: [],
    Template.STREAM: [],
    Template.ASYNC: ["httpx"],
    Template.IMAGE: ["pillow"],
    Template.TORCH: ["numpy", "torch"],
    Template.SKLEARN: ["numpy", "scikit-learn"],
    Template.FASTAPI: ["fastapi", "uvicorn"],
}


def run(where: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of `fnctl init` in a folder."""
    monkeypatch.chdir(where)
    result = CliRunner().invoke(app, ["init", *words], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_every_folder_is_a_template() -> None:
    """The choices of --template are the folders that the package has."""
    assert {path.name for path in TEMPLATES.iterdir()} == {one.value for one in Template}
    assert set(NEEDS) == {*Template}


@pytest.mark.parametrize("template", Template)
def test_a_template_is_a_function(tmp_path: Path, template: Template) -> None:
    """Its needs and its manifest can be read, its code is Python, and it has its new name."""
    folder = write_template(tmp_path, "greet", template)
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    code = texts["main.py" if template is Template.FASTAPI else "handler.py"]
    needs = read_needs({name: text.encode() for name, text in texts.items() if name in FILES})

    assert [one.name for one in needs.requirements] == NEEDS[template]
    assert read_folder(folder).needs == needs
    assert tomllib.loads(texts["function.toml"])["name"] == "greet"
    compile(code, template, "exec")
    assert "fnctl dev greet " in code
    assert "fnctl deploy greet --trust" in code
    assert not [name for name, text in texts.items() if PLACEHOLDER in text]
    assert not [line for text in texts.values() for line in text.split("\n") if len(line) > 100]


def test_the_plain_template_answers(tmp_path: Path) -> None:
    """As the comment in it says."""
    code = (write_template(tmp_path, "greet", Template.PLAIN) / "handler.py").read_text()
    with FunctionRunner(tmp_path / "run", code) as runner:
        assert runner.infer(name="Ada").outputs == {"text": "Hello, Ada!"}
        assert runner.infer(name="Ada", language="fr").outputs == {"text": "Bonjour, Ada!"}
        assert runner.infer().status == 400


def test_the_stream_template_streams(tmp_path: Path) -> None:
    """A word is an event."""
    code = (write_template(tmp_path, "words", Template.STREAM) / "handler.py").read_text()
    with FunctionRunner(tmp_path / "run", code) as runner:
        reply = runner.infer("text/event-stream", text="a b", pause_s=0)

    assert [json.loads(one) if one[:1] == '"' else one for one in reply.events] == ["a", "b"]


def test_it_says_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files, and the next command."""
    code, out, _ = run(tmp_path, monkeypatch, "thumbs", "--template", "image")

    assert code == 0
    assert out.splitlines() == [
        "thumbs/function.toml",
        "thumbs/handler.py",
        "thumbs/requirements.txt",
        "next: fnctl dev thumbs",
    ]


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever has the name stays as it is."""
    there = tmp_path / "greet"
    if kind == "folder":
        there.mkdir()
    elif kind == "file":
        there.write_text("mine")
    else:
        there.symlink_to("nowhere")
    code, out, error = run(tmp_path, monkeypatch, "greet")

    assert (code, out) == (1, "")
    assert "expected a new name, got greet, which is there already" in error
    assert [*tmp_path.iterdir()] == [there]
    assert kind != "folder" or not [*there.iterdir()]
    assert kind != "file" or there.read_text() == "mine"


@pytest.mark.parametrize("name", ["Greet", "../greet", "a/b", "/tmp/greet", "1st", "", "x" * 64])
def test_a_bad_name_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The error says what a name is."""
    code, _, error = run(tmp_path, monkeypatch, name)

    assert code == 2
    assert "expected a name of at most 63 characters" in error
    assert not [*tmp_path.iterdir()]
