"""Tests of the paths and files of a bundle."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from registry.bundles.paths import (
    FILES_MAX,
    check_path,
    check_sha256,
    digest,
    extended,
    make_bundle,
)
from registry.errors import BadBundle
from registry.model.bundles import BundleFile
from tests.support.nouns import bundle_file


@pytest.mark.parametrize(
    "path", ["model.onnx", "a/b/c.bin", "a b.txt", "modèle.onnx", "..a", "a..", "~", "-rf", "a:b"]
)
def test_valid_paths(path: str) -> None:
    """A relative path of plain parts is returned unchanged."""
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "has the part ''"),
        (".", "has the part '.'"),
        ("..", "has the part '..'"),
        ("a/../b", "has the part '..'"),
        ("a//b", "has the part ''"),
        ("a/", "has the part ''"),
        ("./a", "has the part '.'"),
        ("/etc/passwd", "is absolute"),
        ("a\\b", "has a backslash"),
        ("a\x00b", "has a control or invisible character"),
        ("a\nb", "has a control or invisible character"),
        ("a\u202eb", "has a control or invisible character"),
        ("a\udc80b", "has a control or invisible character"),
        ("a/" * 8 + "b", "is deeper than 8 folders"),
        ("x" * 256, "has a part longer than 255 bytes"),
        ("é" * 128, "has a part longer than 255 bytes"),
        ("/".join(["x" * 200] * 3), "is longer than 512 bytes"),
    ],
)
def test_invalid_paths(path: str, rule: str) -> None:
    """A path that could mean another place or file is refused with path and rule."""
    with pytest.raises(BadBundle) as caught:
        check_path(path)

    assert caught.value.detail == {"path": path[:120], "rule": rule}
    assert rule in caught.value.message


@pytest.mark.parametrize("sha256", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_invalid_hashes(sha256: str) -> None:
    """A sha256 is 64 lower-case hex digits, so that it is a safe file name."""
    with pytest.raises(BadBundle, match="64 lower-case hex digits"):
        check_sha256(sha256)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("model.onnx", "model.onnx", "same file"),
        ("Model.onnx", "model.onnx", "same file"),
        ("straße", "STRASSE", "same file"),
        ("caf\u00e9", "cafe\u0301", "same file"),
        ("a", "a/b", "lies below 'a', which is a file"),
        ("A/b", "a/b/c", "lies below 'A/b', which is a file"),
    ],
)
def test_paths_that_collide(first: str, second: str, said: str) -> None:
    """Two paths that some filesystem treats as equal, or as file and folder, are refused."""
    with pytest.raises(BadBundle, match=said):
        make_bundle([bundle_file(first), bundle_file(second)])


def test_the_number_of_files_is_bounded() -> None:
    """A bundle has between one and five thousand files."""
    files = [bundle_file(f"f{n}") for n in range(5001)]

    assert len(make_bundle(files[:5000]).files) == 5000
    with pytest.raises(BadBundle, match="1 to 5000 files, got 5001"):
        make_bundle(files)
    with pytest.raises(BadBundle, match="got 0"):
        make_bundle([])


def test_sizes_are_bounded() -> None:
    """A size is not negative, and the sum of sizes is limited."""
    with pytest.raises(BadBundle, match="0 bytes or more, got -1"):
        make_bundle([replace(bundle_file(), size=-1)])
    with pytest.raises(BadBundle, match="at most 9 bytes in all files, got 10"):
        make_bundle([bundle_file("a", b"12345"), bundle_file("b", b"12345")], max_bytes=9)


def test_the_digest_is_canonical() -> None:
    """The digest is the sha256 of the sorted rows as JSON without spaces."""
    files = [BundleFile("b", 2, "b" * 64), BundleFile("a/é", 1, "a" * 64)]
    rows = f'[["a/é",1,"{"a" * 64}"],["b",2,"{"b" * 64}"]]'

    bundle = make_bundle(files)

    assert bundle.digest == digest(files) == hashlib.sha256(rows.encode()).hexdigest()
    assert [file.path for file in bundle.files] == ["a/é", "b"]


def test_the_digest_tells_files_apart() -> None:
    """Another path, size or hash changes the digest."""
    file = bundle_file()
    others = [
        replace(file, path="other"),
        replace(file, size=file.size + 1),
        replace(file, sha256="0" * 64),
    ]

    assert len({digest([one]) for one in [file, *others]}) == 4


@pytest.mark.parametrize("path", [".prepared/graph.onnx", ".Prepared/x", ".prepared"])
def test_the_folder_of_prepared_files_is_reserved(path: str) -> None:
    """No bundle may have a file at the path of prepared files."""
    with pytest.raises(BadBundle, match=r"lies in \.prepared"):
        make_bundle([bundle_file("model.onnx"), bundle_file(path)])

    assert make_bundle([bundle_file(f"a/{path}")]).files[0].path == f"a/{path}"


@pytest.mark.parametrize("folder", [".prepared", ".optimised", ".compiled", ".Compiled"])
def test_the_servers_folders_are_reserved(folder: str) -> None:
    """No bundle may have a file at the path of a file that the server adds."""
    with pytest.raises(BadBundle, match=f"lies in {folder.lower()}, which is reserved for"):
        make_bundle([bundle_file(f"{folder}/model.onnx")])


def test_a_bundle_is_extended_by_files_of_the_server() -> None:
    """The result has a digest of its own; a bundle to which nothing is added stays the same."""
    plain, added = make_bundle([bundle_file("model.onnx")]), bundle_file(".optimised/model.onnx")
    whole = extended(plain, [added])

    assert extended(plain, ()) is plain
    assert [file.path for file in whole.files] == [".optimised/model.onnx", "model.onnx"]
    assert whole.digest == digest(whole.files) != plain.digest


def test_a_bundle_may_be_empty_if_allowed() -> None:
    """A server function may have no file; the number of files has a limit all the same."""
    files = [bundle_file(f"{number}.txt") for number in range(FILES_MAX + 1)]

    assert make_bundle((), may_be_empty=True).files == ()
    with pytest.raises(BadBundle, match=f"expected 0 to {FILES_MAX} files, got {FILES_MAX + 1}"):
        make_bundle(files, may_be_empty=True)
