"""Writes an optimised model down."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnxruntime as ort

from runtime_image.contract.errors import LoadError
from runtime_image.contract.prepared import GRAPH_FILE, WEIGHTS_FILE
from runtime_image.engines.sessions import PROVIDERS, session_options

KEPT_OUTSIDE_BYTES: Final = 1024
"""Weights from this size lie outside the graph, where they can be mapped."""


def write_prepared(
    model: Path, target: Path, device_kind: str, threads: int, bytes_max: int
) -> None:
    """Optimise `model` for this device and write it into `target`, weights apart from the graph.

    Raises LoadError, also where one of the files would be larger than `bytes_max`.
    """
    options = session_options(threads)
    options.optimized_model_filepath = str(target / GRAPH_FILE)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", WEIGHTS_FILE)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(KEPT_OUTSIDE_BYTES))
    provider = PROVIDERS[device_kind]
    try:
        with _bounded_files(bytes_max):
            session = ort.InferenceSession(str(model), options, providers=[provider])
    except Exception as error:
        raise LoadError(str(error).replace(f"{model.parent}/", "")) from error
    if session.get_providers()[0] != provider:
        raise LoadError(f"device {device_kind}: {provider} could not be used")


@contextmanager
def _bounded_files(bytes_max: int) -> Iterator[None]:
    """No file of this process grows beyond this meanwhile: constants worked out ahead may be of
    any size. Python ignores the signal, so the write fails (setrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
