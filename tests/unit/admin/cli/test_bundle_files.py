from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

import pytest

from admin.cli import bundle_files
from admin.cli.bundle_files import collect, open_file
from registry.errors import BadBundle, BadManifest, BadRequest
from tests.support import models

TOML = 'schema = 1\nname = "adder"\n'


def paths(path: Path, name: str | None = None) -> list[str]:
    return [file.path for file in collect(path, name).bundle.files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A function's folder: a model, a manifest, and what does not belong to it."""
    models.add_one(tmp_path)
    (tmp_path / "function.toml").write_text(TOML)
    (tmp_path / "README.md").touch()
    (tmp_path / "train.py").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "other.onnx").touch()
    return tmp_path


def test_a_model_file_goes_alone(tmp_path: Path) -> None:
    """A bare model is its own bundle, hashed, with a name made of the file's."""
    model = models.add_one(tmp_path)

    collected = collect(model)

    [file] = collected.bundle.files
    data = model.read_bytes()
    assert (file.path, file.size, file.sha256) == (
        "add_one.onnx",
        len(data),
        sha256(data).hexdigest(),
    )
    assert (collected.name, collected.is_derived, collected.path) == ("add-one", True, model)
    assert collected.request(trust=False, breaking=False, overrides={"min": 1}) == {
        "files": [{"path": "add_one.onnx", "size": file.size, "sha256": file.sha256}],
        "manifest": None,
        "model": "add_one.onnx",
        "derived_name": True,
        "trust": False,
        "breaking": False,
        "overrides": {"min": 1},
    }


def test_external_data_goes_along(tmp_path: Path) -> None:
    """The files in which a model keeps its tensors are part of the bundle."""
    assert paths(models.external(tmp_path, 1)) == ["external.bin", "external.onnx"]


def test_external_data_must_be_there(tmp_path: Path) -> None:
    """A model whose data is missing is refused by the data's name."""
    model = models.external(tmp_path, 1)
    (tmp_path / "external.bin").unlink()

    with pytest.raises(BadBundle, match=r"'external\.bin' cannot be read: No such file"):
        collect(model)


def test_a_folder_gives_what_its_manifest_names(folder: Path) -> None:
    """Manifest and model go; what nobody names stays."""
    collected = collect(folder)

    assert [file.path for file in collected.bundle.files] == ["add_one.onnx", "function.toml"]
    assert (collected.name, collected.is_derived, collected.path) == ("adder", False, folder)
    request = collected.request(trust=True, breaking=True, overrides={})
    assert (request["manifest"], request["model"]) == (TOML, None)
    assert (request["trust"], request["breaking"]) == (True, True)


def test_samples_go_along(folder: Path) -> None:
    """Files that the sample names are part of the bundle, in sub-folders too."""
    (folder / "samples").mkdir()
    (folder / "samples" / "a.png").touch()
    (folder / "function.toml").write_text(TOML + '[sample]\nx = "@samples/a.png"\n')

    assert paths(folder) == ["add_one.onnx", "function.toml", "samples/a.png"]
    assert collect(folder).sample == {"x": "@samples/a.png"}


def test_a_handler_brings_its_modules(folder: Path) -> None:
    """Modules and packages beside the handler go along, tests and scripts' folders do not."""
    for name in ("handler.py", "words.py", "test_words.py"):
        (folder / name).touch()
    for inner in ("parts", "scripts"):
        (folder / inner).mkdir()
        (folder / inner / "one.py").touch()
    (folder / "parts" / "__init__.py").touch()

    assert paths(folder) == [
        "add_one.onnx",
        "function.toml",
        "handler.py",
        "parts/__init__.py",
        "parts/one.py",
        "train.py",
        "words.py",
    ]


def test_a_name_comes_from_option_manifest_or_file(folder: Path) -> None:
    """--name is stronger than the manifest, which is stronger than the model file's name."""
    assert collect(folder, "mine").name == "mine"
    (folder / "function.toml").write_text("schema = 1\n")

    collected = collect(folder)

    assert (collected.name, collected.is_derived) == ("add-one", True)


def test_a_function_without_a_model_is_named_by_its_folder(tmp_path: Path) -> None:
    """Without name and model the folder's name is taken."""
    folder = tmp_path / "My Words"
    folder.mkdir()
    text = 'schema = 1\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    (folder / "function.toml").write_text(text)
    (folder / "handler.py").touch()

    assert collect(folder).name == "my-words"


def test_a_bad_name_is_refused_first(tmp_path: Path) -> None:
    """A name that cannot be is told before any file is read."""
    with pytest.raises(BadRequest, match="expected a name"):
        collect(tmp_path / "missing.onnx", "Not A Name")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("x.txt", r"expected a folder with function\.toml or an \.onnx file"),
        ("", r"expected function\.toml in"),
        ("missing.onnx", "No such file"),
        ("bad.onnx", "is not an ONNX model"),
    ],
)
def test_what_is_no_function_is_refused(tmp_path: Path, path: str, complaint: str) -> None:
    """A path that holds no function is refused with what was expected."""
    (tmp_path / "bad.onnx").write_text("hello")

    with pytest.raises(BadBundle, match=complaint):
        collect(tmp_path / path)


@pytest.mark.parametrize(
    ("suffix", "remedy"),
    [
        ("pt", "torch.onnx.export"),
        ("pkl", "skl2onnx.to_onnx"),
        ("JOBLIB", "{'zipmap': False}"),
        ("gguf", "optimum-cli export onnx"),
        ("safetensors", "optimum-cli export onnx"),
        ("h5", "model.export('model.onnx'"),
        ("tflite", "--tflite model.tflite"),
        ("engine", "the ONNX model that it was made of"),
    ],
)
def test_models_of_others_are_told_how_to_become_onnx(
    tmp_path: Path, suffix: str, remedy: str
) -> None:
    """Alone and named by a manifest: refused before anything is sent, with the way to export."""
    (tmp_path / f"model.{suffix}").write_bytes(b"whatever")
    with pytest.raises(BadBundle, match=re.escape(remedy)):
        collect(tmp_path / f"model.{suffix}")

    (tmp_path / "function.toml").write_text(f'schema = 1\nmodel = "model.{suffix}"\n')
    with pytest.raises(BadManifest, match=re.escape(remedy)):
        collect(tmp_path)


def test_a_folder_with_a_model_only_names_the_command(tmp_path: Path) -> None:
    """Without a manifest the model itself can be deployed."""
    path = models.add_one(tmp_path)
    with pytest.raises(BadBundle, match=r"expected function\.toml") as caught:
        collect(tmp_path)
    assert caught.value.__notes__ == [f"fnctl deploy {path}"]


def test_links_are_refused(tmp_path: Path, folder: Path) -> None:
    """A symbolic link in a bundle is refused, with the way out."""
    (folder / "add_one.onnx").rename(tmp_path / "real")
    (folder / "add_one.onnx").symlink_to(tmp_path / "real")

    with pytest.raises(BadBundle, match=r"symbolic link .* deploy what it points to"):
        collect(folder)
    with pytest.raises(BadBundle, match="symbolic link"):
        collect(folder / "add_one.onnx")


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    """No folder on the way to a file may be a link either."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(BadBundle, match="'link/a': expected a file, got a symbolic link"):
        open_file(tmp_path, "link/a")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A special file is refused without waiting for its other end."""
    os.mkfifo(tmp_path / "pipe.onnx")

    with pytest.raises(BadBundle, match="is not a regular file"):
        collect(tmp_path / "pipe.onnx")


@pytest.mark.parametrize(
    "line", ['model = "../other.onnx"', 'model = "/etc/passwd"', '[sample]\nx = "@../a.png"']
)
def test_paths_outside_are_refused(folder: Path, line: str) -> None:
    """A manifest cannot name what lies outside its folder."""
    (folder / "function.toml").write_text(f"{TOML}{line}\n")

    with pytest.raises(BadManifest, match=r"expected .*bundle's files"):
        collect(folder)


def test_a_manifest_is_text(folder: Path) -> None:
    """A manifest that is no UTF-8 is refused at the byte."""
    (folder / "function.toml").write_bytes(b"a = \xff")

    with pytest.raises(BadBundle, match="expected UTF-8 text, got other bytes at 4"):
        collect(folder)


def test_a_huge_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with more files than any function has is no function's."""
    monkeypatch.setattr(bundle_files, "SCANNED_MAX", 3)

    with pytest.raises(BadBundle, match="expected at most 3 files"):
        collect(folder)
