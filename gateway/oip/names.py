"""Names and versions of models in the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.errors import UnknownModel

if TYPE_CHECKING:
    from registry.catalog import Catalog, Deployed

SHOWN_MAX = 100
"""Max characters of a client's text in an error."""


def served_name(deployed: Deployed) -> str:
    """Return the name of a function's model in the protocol."""
    return deployed.function.oip_name or deployed.function.name


def served_version(deployed: Deployed) -> str:
    """Return the version of a revision in the protocol."""
    return deployed.revision.oip_version or str(deployed.revision.number)


def find_served(catalog: Catalog, name: str, version: str) -> Deployed:
    """Return the revision that serves a version of a model, "" for the one with the traffic.

    Raises UnknownModel if there is none, or if its function has no tensors.
    """
    found = catalog.find_oip(name, version)
    if found is None:
        raise unknown_model(catalog, name, version)
    if found.revision.signature.kind != "tensors":
        own = found.function.name
        raise UnknownModel(f"{name[:SHOWN_MAX]} has no tensors for this protocol: call /fn/{own}")
    return found


def unknown_model(catalog: Catalog, name: str, version: str) -> UnknownModel:
    """Return the error for a model or a version that does not exist."""
    shown = name[:SHOWN_MAX]
    current = catalog.find_oip(name)
    if current is None:
        return UnknownModel(f"no model {shown!r}")
    versions = ", ".join(served_version(one) for one in catalog.revisions(current.function.name))
    return UnknownModel(
        f"model {shown!r} has no version {version[:SHOWN_MAX]!r}; there is {versions}"
    )
