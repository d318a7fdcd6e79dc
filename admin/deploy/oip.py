"""A deploy's name in the Open Inference Protocol, and what it finds already deployed. Pure."""

from __future__ import annotations

from typing import Final

from registry.catalog import Catalog, Deployed
from registry.errors import Conflict
from registry.manifest import Manifest
from registry.model.revisions import Revision
from registry.spec import settings_equal

AT: Final = "function.toml: oip.name"


def oip_name(name: str, manifest: Manifest, catalog: Catalog) -> str:
    """Return the `oip_name` of the function `name` after this deploy.

    The first deploy sets it. Raises Conflict if a later one names another, or if the function's
    name or that name means another function's model at /v2.
    """
    if (owner := catalog.owner_of_oip(name)) not in (None, name):
        raise Conflict(
            f"{name} is the name of {owner} at /v2: choose another name", detail={"function": owner}
        )
    wanted, before = manifest.oip_name, catalog.find(name)
    if before is not None:
        served = before.function.oip_name or name
        if wanted not in ("", served):
            raise Conflict(
                f"{AT}: expected {served!r}, which clients call {name} at /v2 since its first"
                f" deploy, got {wanted!r}; deploy it under another name, or remove {name} first",
                detail={"function": name},
            )
        return before.function.oip_name
    if wanted and (owner := catalog.owner_of_oip(wanted)):
        raise Conflict(
            f"{AT}: {wanted!r} is the name of {owner} at /v2: deploy to {owner}, or choose another",
            detail={"function": owner},
        )
    if wanted != name and catalog.find(wanted) is not None:
        raise Conflict(
            f"{AT}: {wanted!r} is the name of another function: choose another",
            detail={"function": wanted},
        )
    return wanted


def is_meant(name: str, manifest: Manifest, catalog: Catalog) -> bool:
    """Return whether a name that was derived from a file's or folder's name may be deployed to: no
    function has it, or that function has the manifest's `oip_name` as its own."""
    found = catalog.find(name)
    return found is None or (
        bool(manifest.oip_name) and found.function.oip_name == manifest.oip_name
    )


def same_version(draft: Revision, catalog: Catalog) -> Deployed | None:
    """Return the newest revision with the draft's `oip_version`, if the draft equals it."""
    for one in reversed(catalog.revisions(draft.name, draft.namespace)):
        if one.revision.oip_version == draft.oip_version:
            return one if settings_equal(one.revision, draft) else None
    return None
