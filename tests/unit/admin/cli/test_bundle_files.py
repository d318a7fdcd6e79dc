from __future__ import annotations

import os
import re
import shlex
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from admin.cli import bundle_files, ignoring
from admin.cli.bundle_files import collect, open_file
from admin.documents.requests import DeployRequest
from registry.errors import BadBundle, BadManifest, BadRequest
from tests.support import models

TOML = 'schema = 1\nname = "adder"\n'


def paths(path: Path, name: str | None = None) -> list[str]:
    return [file.path for file in collect(path, name).bundle.files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a function's folder with a model, a manifest and unrelated files."""
    models.add_one(tmp_path)
    (tmp_path / "function.toml").write_text(TOML)
    (tmp_path / "README.md").touch()
    (tmp_path / "train.py").touch()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "other.onnx").touch()
    return tmp_path


def test_a_model_file_goes_alone(tmp_path: Path) -> None:
    """A bare model file is a bundle of its own, hashed, with a name derived from the file's."""
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
    request = collected.request(DeployRequest([], overrides={"min": 1}))
    assert msgspec.to_builtins(request) == {
        "files": [{"path": "add_one.onnx", "size": file.size, "sha256": file.sha256}],
        "model": "add_one.onnx",
        "derived_name": True,
        "overrides": {"min": 1},
    }


def test_external_data_goes_along(tmp_path: Path) -> None:
    """The files with a model's external tensors are part of the bundle."""
    assert paths(models.external(tmp_path, 1)) == ["external.bin", "external.onnx"]


def test_external_data_must_be_there(tmp_path: Path) -> None:
    """A missing file of external tensors is refused by its name."""
    model = models.external(tmp_path, 1)
    (tmp_path / "external.bin").unlink()

    with pytest.raises(BadBundle, match=r"'external\.bin' cannot be read: No such file"):
        collect(model)


def test_a_folder_gives_what_its_manifest_names(folder: Path) -> None:
    """A folder's bundle has the manifest and the model, and no file that nothing names."""
    collected = collect(folder)

    assert [file.path for file in collected.bundle.files] == ["add_one.onnx", "function.toml"]
    assert (collected.name, collected.is_derived, collected.path) == ("adder", False, folder)
    request = collected.request(DeployRequest([], trust=True, breaking=True))
    assert (request.manifest, request.model) == (TOML, None)
    assert (request.trust, request.breaking) == (True, True)


def test_samples_go_along(folder: Path) -> None:
    """Files named by the sample are part of the bundle, in sub-folders too."""
    (folder / "samples").mkdir()
    (folder / "samples" / "a.png").touch()
    (folder / "function.toml").write_text(TOML + '[sample]\nx = "@samples/a.png"\n')

    assert paths(folder) == ["add_one.onnx", "function.toml", "samples/a.png"]
    assert collect(folder).sample == {"x": "@samples/a.png"}


def test_a_handler_brings_its_folder(folder: Path) -> None:
    """With a handler the folder goes as it is: modules, data, libraries and sub-folders, but no
    hidden file and nothing that Python or npm made."""
    sent = ["handler.py", "vocab.txt", "kernel.so", "parts/one.py", "weights/a.bin", "data/x"]
    left = [".env", ".git/config", "parts/__pycache__/one.pyc", "b.pyc", "node_modules/a/b.js"]
    for name in (*sent, *left):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    always = ["README.md", "add_one.onnx", "function.toml", "train.py"]
    assert paths(folder) == sorted([*sent, *always])
    assert collect(folder).unnamed == frozenset([*sent, "README.md", "train.py"]) - {"handler.py"}
    along = "README.md, data/x, kernel.so, parts/one.py, train.py and 2 more"
    assert collect(folder).along() == along


def test_code_is_deployed_with_its_folder(folder: Path) -> None:
    """A file of Python code alone says what was expected, and how its folder is deployed."""
    (folder / "handler.py").touch()
    for name in ("handler.py", "train.py"):
        with pytest.raises(BadBundle, match=r"where handler\.py defines predict") as caught:
            collect(folder / name)
        assert caught.value.__notes__ == [f"fnctl deploy {folder} --trust"]

    (folder / "handler.py").unlink()
    with pytest.raises(BadBundle, match=r"got .*train\.py; code is deployed") as caught:
        collect(folder / "train.py")
    assert not hasattr(caught.value, "__notes__")
    assert collect(folder).along() == ""


def test_fnignore_decides_what_is_in_the_folder(folder: Path) -> None:
    """.fnignore leaves files out and takes hidden ones in; what function.toml names goes anyway."""
    for name in ("handler.py", ".env", "notes.md", "a.png", "b.png"):
        (folder / name).touch()
    (folder / "function.toml").write_text(TOML + '[sample]\nx = "@a.png"\n')
    (folder / ".fnignore").write_text("# mine\n*.md\n/train.py\nb.png\n!.env\n*.toml\n")

    assert paths(folder) == [".env", "a.png", "add_one.onnx", "function.toml", "handler.py"]


def test_a_bad_fnignore_is_refused(folder: Path) -> None:
    """A .fnignore that is too long or is not text is refused by its name."""
    (folder / ".fnignore").write_bytes(b"a\n" * 40_000)
    with pytest.raises(BadBundle, match=r"'\.fnignore': expected at most 65536 bytes"):
        collect(folder)
    (folder / ".fnignore").write_bytes(b"\xff")
    with pytest.raises(BadBundle, match=r"'\.fnignore': expected UTF-8 text"):
        collect(folder)


def test_large_files_and_many_are_surprises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that nothing names are named if they are large, and counted if they are many; the
    model may have any size."""
    monkeypatch.setattr(bundle_files, "BIG", 10)
    monkeypatch.setattr(bundle_files, "MANY", 3)
    assert collect(folder).surprises() == []
    (folder / "handler.py").touch()
    (folder / "dump.bin").write_bytes(bytes(2048))
    assert collect(folder).surprises() == ["dump.bin has 2.0 KiB"]
    (folder / "more").touch()
    assert collect(folder).surprises() == ["dump.bin has 2.0 KiB", "the folder has 4 files"]


def test_a_name_comes_from_option_manifest_or_file(folder: Path) -> None:
    """--name takes precedence over the manifest, and the manifest over the model file's name."""
    assert collect(folder, "mine").name == "mine"
    (folder / "function.toml").write_text("schema = 1\n")

    collected = collect(folder)

    assert (collected.name, collected.is_derived) == ("add-one", True)


def test_a_function_without_a_model_is_named_by_its_folder(tmp_path: Path) -> None:
    """A function without name and model is named after its folder."""
    folder = tmp_path / "My Words"
    folder.mkdir()
    text = 'schema = 1\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    (folder / "function.toml").write_text(text)
    (folder / "handler.py").touch()

    assert collect(folder).name == "my-words"


def test_a_python_function_is_its_folder(tmp_path: Path) -> None:
    """All its files go along. Without a manifest and a model it is one whose table is empty."""
    (tmp_path / "handler.py").write_text("def predict(a): return a")
    (tmp_path / "requirements.txt").write_text("numpy")
    bare = collect(tmp_path)
    assert (bare.is_server, bare.manifest) == (True, "schema = 1\n\n[python]\n")
    assert [one.path for one in bare.bundle.files] == ["handler.py", "requirements.txt"]
    (tmp_path / "model.onnx").touch()
    with pytest.raises(BadBundle, match=r"expected function\.toml in"):
        collect(tmp_path)
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "function.toml").write_text("schema = 1\n[python]\n")
    found = collect(tmp_path)
    assert found.is_server
    assert [one.path for one in found.bundle.files] == [
        "function.toml",
        "handler.py",
        "requirements.txt",
    ]


def test_a_bad_name_is_refused_first(tmp_path: Path) -> None:
    """A bad name is refused before any file is read."""
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
def test_a_path_without_a_function_is_refused(tmp_path: Path, path: str, complaint: str) -> None:
    """A path without a function is refused with what was expected."""
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
    """A model of another framework is refused before anything is sent, with the way to export it to
    ONNX."""
    (tmp_path / f"model.{suffix}").write_bytes(b"whatever")
    with pytest.raises(BadBundle, match=re.escape(remedy)):
        collect(tmp_path / f"model.{suffix}")

    (tmp_path / "function.toml").write_text(f'schema = 1\nmodel = "model.{suffix}"\n')
    with pytest.raises(BadManifest, match=re.escape(remedy)):
        collect(tmp_path)


@pytest.mark.parametrize("suffix", ["onnx", "ONNX", "Onnx"])
def test_a_folder_with_a_model_only_names_the_command(tmp_path: Path, suffix: str) -> None:
    """A folder with a model but no manifest is refused with the command that deploys the model, as
    a shell takes it; a suffix in capitals is no other one, also in a manifest's folder."""
    folder = tmp_path / "my models"
    folder.mkdir()
    path = models.add_one(folder).rename(folder / f"it's.{suffix}")
    with pytest.raises(BadBundle, match=r"expected function\.toml") as caught:
        collect(folder)
    [note] = caught.value.__notes__
    assert shlex.split(note) == ["fnctl", "deploy", str(path)]
    assert collect(Path(shlex.split(note)[2])).name == "it-s"

    (folder / "function.toml").write_text(TOML)
    assert collect(folder).bundle.files[-1].path == path.name


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """Create a model with external data as a cache of blobs and links has it."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    models.external(blobs, 1)
    for at, name in enumerate(("external.onnx", "external.bin")):
        (blobs / name).rename(blobs / str(at))
        (snapshot / name).symlink_to(f"../../blobs/{at}")
    return snapshot


def test_links_are_followed_by_content(hub: Path) -> None:
    """A model and its data may be links out of their folder; what they point to is sent, without a
    question."""
    assert paths(hub / "external.onnx") == ["external.bin", "external.onnx"]
    (hub / "function.toml").write_text(TOML)

    collected = collect(hub)

    model = collected.bundle.files[1]
    assert model.path == "external.onnx"
    assert model.sha256 == sha256((hub / "external.onnx").read_bytes()).hexdigest()
    assert collected.surprises() == []


def test_links_of_a_handlers_folder_are_followed(hub: Path) -> None:
    """Links to files and folders are followed; those that lead out, and that nothing names, are
    named."""
    (hub / "function.toml").write_text(TOML)
    (hub / "handler.py").touch()
    (hub / "data").mkdir()
    (hub / "data" / "a").touch()
    (hub / "inside").symlink_to("data")
    (hub / "words").symlink_to("../../blobs/1")

    collected = collect(hub)

    sent = [file.path for file in collected.bundle.files]
    assert [path for path in sent if not path.startswith("external")] == [
        "data/a",
        "function.toml",
        "handler.py",
        "inside/a",
        "words",
    ]
    target = (hub.parent.parent / "blobs" / "1").resolve()
    assert collected.surprises() == [f"words is a link out of the folder, to {target}"]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("../.ssh/id", r"'link': expected a link to a file that is not hidden, got one to "),
        (".env", r"'link': expected a link to a file that is not hidden"),
        ("/proc/self/environ", r"'link': expected a link to a file that is not hidden"),
        ("/dev/zero", r"'link' is not a regular file"),
        ("pipe", r"is not a regular file"),
        ("link", r"'link' cannot be read: "),
        ("gone", r"'link' cannot be read: No such file"),
        (".", r"'link' is a link to a folder that it lies in"),
        ("..", r"'link/folder' is a link to a folder|'link/folder/link' is a link to a folder"),
    ],
)
def test_links_to_secrets_and_circles_are_refused(
    tmp_path: Path, target: str, complaint: str
) -> None:
    """A stranger's folder cannot make fnctl send keys, the environment, devices or itself."""
    folder = tmp_path / "folder"
    for path in (folder / ".env", tmp_path / ".ssh" / "id"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    if target == "pipe":
        os.mkfifo(folder / "pipe")
    (folder / "handler.py").touch()
    text = TOML + '[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    (folder / "function.toml").write_text(text)
    (folder / "link").symlink_to(target)

    with pytest.raises(BadBundle, match=complaint):
        collect(folder)


def test_a_linked_hidden_file_is_not_read(tmp_path: Path) -> None:
    """A linked folder on the way to a file counts, too."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "a").touch()
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "link").symlink_to(tmp_path / ".ssh")

    with pytest.raises(BadBundle, match="'link/a': expected a link to a file that is not hidden"):
        open_file(tmp_path / "repository", "link/a")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """A special file is refused without waiting for its other end."""
    os.mkfifo(tmp_path / "pipe.onnx")

    with pytest.raises(BadBundle, match="is not a regular file"):
        collect(tmp_path / "pipe.onnx")


@pytest.mark.parametrize(
    "line", ['model = "../other.onnx"', 'model = "/etc/passwd"', '[sample]\nx = "@../a.png"']
)
def test_paths_outside_are_refused(folder: Path, line: str) -> None:
    """A manifest cannot name files outside its folder."""
    (folder / "function.toml").write_text(f"{TOML}{line}\n")

    with pytest.raises(BadManifest, match=r"expected .*bundle's files"):
        collect(folder)


def test_a_manifest_is_text(folder: Path) -> None:
    """A manifest that is not UTF-8 is refused with the position of the byte."""
    (folder / "function.toml").write_bytes(b"a = \xff")

    with pytest.raises(BadBundle, match="expected UTF-8 text, got other bytes at 4"):
        collect(folder)


def test_a_huge_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with too many files is refused."""
    monkeypatch.setattr(ignoring, "SCANNED_MAX", 3)

    with pytest.raises(BadBundle, match="expected at most 3 files"):
        collect(folder)
