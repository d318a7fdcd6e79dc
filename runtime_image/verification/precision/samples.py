"""Samples that calibrate and judge candidates: the owner's .npz file, or synthetic inputs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from runtime_image.contract.dtypes import BYTES, FROM_NPY
from runtime_image.contract.errors import LoadError
from runtime_image.contract.precision import CALIBRATION_MIN, JUDGED_MIN
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.verification import proof

FILE_BYTES_MAX: Final = 256 * 2**20
ARRAYS_BYTES_MAX: Final = 512 * 2**20
"""Max bytes of all arrays in the file, uncompressed. The sizes that the file claims are checked
before anything is unpacked, and no more than them is unpacked."""
CALIBRATION_MAX: Final = 256
JUDGED_MAX: Final = 1024
"""Further samples are not used: they would cost the deploying client time."""
SYNTHETIC: Final = 64
"""Number of synthetic samples; those that the model refuses are dropped."""
SEED: Final = 0
"""A file may be sorted by class, so its samples are split at random, but always equally."""

Source = Literal["samples", "synthetic"]


class SamplesError(LoadError):
    """The samples of [optimise] do not fit the model; the text is the reason."""

    stage = "sample"


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs of a model. `arrays` have equally many samples, each of `units[input]` rows: 1, or the
    size of a fixed first axis; 0 for one value of a scalar input. `calibration` and `judged` are
    numbers of samples, all of them different: a candidate is not judged by what calibrated it."""

    arrays: Mapping[str, Any]
    units: Mapping[str, int]
    source: Source
    calibration: tuple[int, ...]
    judged: tuple[int, ...]

    def feed(self, number: int) -> dict[str, Any]:
        """Return the inputs of one run."""
        return {name: self._sample(name, number) for name in self.arrays}

    def _sample(self, name: str, number: int) -> Any:
        unit = self.units[name]
        found = self.arrays[name][number * max(1, unit) : (number + 1) * max(1, unit)]
        return found if unit else found.reshape(())

    def feeds(self, numbers: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """Yield the inputs of these samples, one after the other."""
        return (self.feed(number) for number in numbers)


def split(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which of `count` samples calibrate and which judge. Too few for both only judge."""
    numbers = [int(number) for number in np.random.default_rng(SEED).permutation(count)]
    calibration = min(CALIBRATION_MAX, count // 3)
    if count < CALIBRATION_MIN + JUDGED_MIN:
        calibration = 0
    judged = numbers[calibration : calibration + JUDGED_MAX]
    return tuple(numbers[:calibration]), tuple(judged)


def synthetic(signature: Signature, example: Mapping[str, Any]) -> Samples:
    """Return the example and random variants of its first row, which only judge. Scalars, such as a
    sample rate, stay as they are."""
    units = {
        tensor.name: _unit(tensor) if np.ndim(example[tensor.name]) else 0
        for tensor in signature.inputs
    }
    first = {
        name: value[: units[name]] if units[name] else value for name, value in example.items()
    }
    varied = tuple(tensor for tensor in signature.inputs if units[tensor.name])
    others = [{**first, **proof.variant(varied, first, n, SEED)} for n in range(SYNTHETIC - 1)]
    rows = [first] if any(unit > 1 for unit in units.values()) else [first, *others]
    arrays = {name: np.concatenate([np.atleast_1d(one[name]) for one in rows]) for name in first}
    return Samples(arrays, units, "synthetic", (), tuple(range(len(rows))))


def read(path: Path, signature: Signature) -> Samples:
    """Return the samples of an .npz file: one array per input, equal numbers of samples.

    Raises SamplesError naming what was expected and what came. Objects, which NumPy would unpickle,
    are refused, as is anything larger than it claims.
    """
    try:
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise SamplesError(f"{path.name} has {size} bytes, the limit is {FILE_BYTES_MAX}")
        if not zipfile.is_zipfile(path):
            raise SamplesError(
                f"{path.name}: expected an archive of numpy.savez, got {size} bytes of another kind"
            )
        with zipfile.ZipFile(path) as archive:
            arrays = _arrays(archive, signature)
    except SamplesError:
        raise
    except Exception as error:
        # A hostile archive or header raises nearly anything, tokenize.TokenError included.
        raise SamplesError(f"{path.name} cannot be read: {_text(error, path)}") from error
    units = {tensor.name: _unit(tensor) for tensor in signature.inputs}
    counts = {name: array.shape[0] / max(1, units[name]) for name, array in arrays.items()}
    count = next(iter(counts.values()))
    if any(other != count for other in counts.values()) or count != int(count) or not count:
        rows = ", ".join(f"{name}: {array.shape[0]}" for name, array in arrays.items())
        raise SamplesError(f"{path.name}: expected equal numbers of samples, got rows {rows}")
    found = Samples(arrays, units, "samples", (), ())
    numbers = _different(found, int(count))
    calibration, judged = (tuple(numbers[place] for place in part) for part in split(len(numbers)))
    return replace(found, calibration=calibration, judged=judged)


def _different(samples: Samples, count: int) -> list[int]:
    """Return the numbers of the samples that are no copies of an earlier one."""
    numbers: dict[bytes, int] = {}
    for number in range(count):
        digest = hashlib.blake2b(digest_size=16)
        for array in samples.feed(number).values():
            digest.update(repr(array.tolist()).encode() if array.dtype == object else array.data)
        numbers.setdefault(digest.digest(), number)
    return list(numbers.values())


def _arrays(archive: zipfile.ZipFile, signature: Signature) -> dict[str, Any]:
    members = archive.infolist()
    wanted = {f"{tensor.name}.npy": tensor for tensor in signature.inputs}
    if sorted(member.filename for member in members) != sorted(wanted):
        got = [member.filename.removesuffix(".npy") for member in members[:16]]
        raise ValueError(f"expected one array per input, {sorted(_names(signature))}, got {got}")
    claimed = sum(member.file_size for member in members)
    if claimed > ARRAYS_BYTES_MAX:
        raise ValueError(f"its arrays have {claimed} bytes, the limit is {ARRAYS_BYTES_MAX}")
    return {
        wanted[member.filename].name: _array(archive, member, wanted[member.filename])
        for member in members
    }


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, tensor: TensorSpec) -> Any:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed by an unknown method")
    with archive.open(member) as file:
        # `open` gives at most `file_size` bytes, whatever the compressed stream would expand to.
        content = io.BytesIO(file.read(member.file_size))
    version = np.lib.format.read_magic(content)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{member.filename} has npy version {version}, expected 1.0 or 2.0")
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = header(content)
    _check(tensor, shape, dtype)
    # NumPy would reserve what the header claims.
    claimed = int(np.prod([int(size) for size in shape], dtype=object)) * dtype.itemsize
    if claimed != len(content.getbuffer()) - content.tell():
        raise ValueError(f"{member.filename} claims {claimed} bytes and has another number")
    content.seek(0)
    array = np.lib.format.read_array(content, allow_pickle=False)
    return _texts(array) if tensor.dtype == BYTES else np.ascontiguousarray(array)


def _check(tensor: TensorSpec, shape: tuple[int, ...], dtype: Any) -> None:
    axes = tensor.shape or (DYNAMIC,)
    shown = _shown(axes)
    if tensor.shape is None:
        axes, shown = (DYNAMIC,) * max(1, len(shape)), "of any shape"
    expected = f"input {tensor.name}: expected {tensor.dtype} {shown}"
    is_text = tensor.dtype == BYTES and dtype.kind in "US"
    if not is_text and FROM_NPY.get(dtype.str) != tensor.dtype:
        raise ValueError(f"{expected}, got {dtype}")
    is_shape = len(shape) == len(axes) and all(
        size > 0 and (wanted in (DYNAMIC, size) or axis == 0)
        for axis, (size, wanted) in enumerate(zip(shape, axes, strict=True))
    )
    if not is_shape:
        raise ValueError(f"{expected} with samples on the first axis, got {list(shape)}")


def _texts(array: Any) -> Any:
    """Return strings as ONNX Runtime takes them: objects."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object)


def _unit(tensor: TensorSpec) -> int:
    """Return how many places of the first axis are one sample, 0 for a scalar."""
    if tensor.shape is None:
        return 1
    if not tensor.shape:
        return 0
    return 1 if tensor.shape[0] == DYNAMIC else max(1, tensor.shape[0])


def _names(signature: Signature) -> list[str]:
    return [tensor.name for tensor in signature.inputs]


def _shown(shape: tuple[int, ...]) -> str:
    return str(["?" if size == DYNAMIC else size for size in shape]).replace("'", "")


def _text(error: BaseException, path: Path) -> str:
    text = str(error) or type(error).__name__
    return text.replace(f"{path.parent}/", "")[:400]
