"""Names and versions of models in the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.errors import UnknownModel
from runtime_image.contract.proposals import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.catalog import Catalog, Deployed

SHOWN_MAX = 100
"""Max characters of a client's text in an error."""


def served_name(deployed: Deployed) -> str:
    """Return the name of a function's model in the protocol."""
    return deployed.function.oip_name or deployed.function.name


def served_version(deployed: Deployed) -> str:
    """Return the version of a revision in the protocol."""
    return deployed.revision.oip_version or str(deployed.revision.number)


def find_served(
    catalog: Catalog, name: str, version: str, may_see: Callable[[str], bool]
) -> Deployed:
    """Return the revision that serves a version of a model, "" for the one with the traffic.

    Raises UnknownModel if there is none, or if its function has no tensors. The error proposes
    models of functions that the caller `may_see`.
    """
    found = catalog.find_oip(name, version)
    if found is None:
        raise _unknown_model(catalog, name, version, may_see)
    if found.revision.signature.kind != "tensors":
        own = found.function.name
        raise UnknownModel(f"{name[:SHOWN_MAX]} has no tensors for this protocol: call /fn/{own}")
    return found


def _unknown_model(
    catalog: Catalog, name: str, version: str, may_see: Callable[[str], bool]
) -> UnknownModel:
    def is_proposed(other: str) -> bool:
        found = catalog.find_oip(other)
        return (
            found is not None
            and found.revision.signature.kind == "tensors"
            and may_see(found.function.name)
        )

    shown = name[:SHOWN_MAX]
    current = catalog.find_oip(name)
    if current is None:
        near = catalog.similar(name, is_proposed)
        return UnknownModel(f"no model {shown!r}{did_you_mean(near)}", detail={"nearest": near})
    versions = ", ".join(served_version(one) for one in catalog.revisions(current.function.name))
    return UnknownModel(
        f"model {shown!r} has no version {version[:SHOWN_MAX]!r}; there is {versions}"
    )
