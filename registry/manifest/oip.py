"""Table [oip] of a model function: its name and version in the Open Inference Protocol."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from registry.manifest.checks import Section, refused
from registry.names import OIP_NAME_MAX, OIP_NAME_RULE, OIP_VERSION_MAX, is_oip_name

_AT: Final = "oip"


class OipTable(Section):
    """Table [oip]."""

    name: Annotated[str, Field(max_length=OIP_NAME_MAX)] = ""
    """Name of the model at `/v2` and gRPC, beside the function's: letters, digits, `.`, `_` and
    `-`. No other function may have it as its name there or as its own. The first deploy sets it;
    a later one may leave it out, and is refused with another."""
    version: int | None = Field(default=None, ge=1, le=OIP_VERSION_MAX)
    """Version of this revision at `/v2` and gRPC; without it the revision's number. Where several
    revisions have one version, the newest is meant."""


def oip_identity(table: OipTable) -> tuple[str, str]:
    """Return name and version, "" for one that is not given. Raises BadManifest."""
    if table.name and not is_oip_name(table.name):
        raise refused(f"{_AT}.name", OIP_NAME_RULE, table.name)
    return table.name, "" if table.version is None else str(table.version)
