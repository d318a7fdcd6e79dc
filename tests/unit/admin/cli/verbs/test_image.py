from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from admin.built_images import note_of, read_built
from admin.cli.verbs.image import render
from admin.image.build import BuildRequest, BuiltImage
from tests.support import runtime_images
from tests.support.admin_api import AdminApi, Canned

BUILT = BuiltImage(
    *("fngate-runtime:cpu", "sha256:1234", "cpu", 285_000_000, "3.11.2", "1.31.1", 1, "0.1.0"),
    *("sha256:5678", "", 10.4),
)


def test_a_result_is_told_in_full() -> None:
    """The result has name, id, size, versions and time, and the replaced image if there was one."""
    assert render(BUILT).split("\n") == [
        "fngate-runtime:cpu built in 10.4 s",
        "  id           sha256:1234",
        "  size         271.8 MiB",
        "  python       3.11.2",
        "  onnxruntime  1.31.1",
        "  link         1",
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    # docker-py leaves the socket of a failed connection to the garbage collector.
    "ignore:unclosed <socket:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_no_engine_is_told(fnctl: Callable[..., Result], tmp_path: Path) -> None:
    """Without an engine the text, and the JSON problem, say what to do next."""
    engine = f"unix://{tmp_path}/none.sock"

    said = fnctl("image", "build", "--engine", engine)
    problem = json.loads(fnctl("image", "build", "--engine", engine, "--json").stderr)

    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr.split("\n")[:2] == [
        f"error: The engine does not answer: there is no Docker engine at {engine}",
        "next: sudo systemctl start docker  or name the engine with --engine or FN_DOCKER_HOST",
    ]
    assert problem["code"] == "engine_down"
    assert problem["next"].startswith("sudo systemctl start docker")


@pytest.mark.parametrize(
    "words",
    [
        ("--tensorrt", "ten", "gpu"),
        ("--tensorrt", "11", "gpu"),
        ("--tensorrt", "10", "cpu"),
        ("--wheels", ".", "gpu"),
        ("tpu",),
        ("--tag", "A B"),
    ],
)
def test_wrong_words_are_wrong_usage(fnctl: Callable[..., Result], words: tuple[str, ...]) -> None:
    """Wrong usage is refused before an engine is contacted."""
    assert fnctl("image", "build", *words).exit_code == 2


@pytest.mark.parametrize("option", ["--context", "--wheelhouse", "--wheels"])
def test_a_wrong_folder_is_told(fnctl: Callable[..., Result], tmp_path: Path, option: str) -> None:
    """A wrong folder is refused before an engine is contacted."""
    more = ("--tensorrt", "10", "gpu") if option == "--wheels" else ()
    said = fnctl("image", "build", option, str(tmp_path), "--engine", "unix:///none", *more)

    assert said.exit_code == 1
    assert said.stderr.startswith("error: The image was not built: ")
    assert str(tmp_path) in said.stderr


def words(order: BuildRequest) -> tuple[str, ...]:
    """Return the command line for an image build."""
    return (
        *("image", "build", order.kind, "--tag", order.tag, "--base", order.base),
        *("--wheelhouse", str(order.wheelhouse), "--engine", order.engine),
    )


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_image_is_built(fnctl: Callable[..., Result], tmp_path: Path) -> None:
    """Steps with their times go to stderr, the result to stdout. The data folder has a record."""
    checkout = runtime_images.light_checkout(tmp_path)
    wheels = runtime_images.light_wheelhouse(tmp_path / "wheels")
    order = runtime_images.order(f"fngate-test:{tmp_path.name.lower()}", wheelhouse=wheels)
    try:
        said = fnctl(*words(order), "--context", str(checkout), "--data", str(tmp_path / "data"))
        recorded = read_built(tmp_path / "data")
    finally:
        with runtime_images.connected() as client:
            runtime_images.remove(client, order.tag)

    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith(f"{order.tag} built in ")
    assert " s] step " in said.stderr
    [(name, id)] = recorded.items()
    assert name == f"docker.io/library/{order.tag}"
    assert id in said.stdout


@pytest.mark.docker
@pytest.mark.slow
def test_json_is_nothing_but_json(fnctl: Callable[..., Result], tmp_path: Path) -> None:
    """With --json no step is printed, even by a build that fails later, here for want of wheels."""
    [wheel, *_] = Path(runtime_images.given("FN_TEST_WHEELHOUSE")).glob("packaging-*.whl")
    (tmp_path / wheel.name).symlink_to(wheel)
    order = runtime_images.order("fngate-test:never", wheelhouse=tmp_path)

    said = fnctl(*words(order), "--json")

    assert (said.exit_code, said.stdout) == (1, "")
    assert json.loads(said.stderr)["code"] == "image_failed"


def test_an_image_that_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    """The build is not lost; the text says what is missing, and which option helps."""
    (tmp_path / "file").touch()

    assert note_of(tmp_path, "rt:1", "sha256:" + "a" * 64) == ""
    said = note_of(tmp_path / "file", "rt:1", "sha256:" + "a" * 64)
    assert said.startswith("keys with the scope deploy cannot name rt:1, as it is not recorded in")
    assert said.endswith("name the server's data folder with --data or FN_DATA")


PRUNE = "/admin/v1/images/prune"


def test_pruned_images_are_listed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Each image has its names and its size; the sum says that layers may be shared."""
    one = {"id": "sha256:a", "names": ["nginx:1"], "size_bytes": 2 * 2**20}
    api.on("POST", PRUNE, Canned({"removed": [one, {**one, "id": "sha256:b", "names": []}]}))

    assert fnctl("image", "prune").stdout.split("\n") == [
        "nginx:1  2.0 MiB",
        "sha256:b  2.0 MiB",
        "2 images removed, 4.0 MiB shared layers included",
        "",
    ]


def test_nothing_to_prune_is_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Without unused images nothing is removed."""
    api.on("POST", PRUNE, Canned({"removed": []}))

    assert fnctl("image", "prune").stdout == "no image to remove\n"
