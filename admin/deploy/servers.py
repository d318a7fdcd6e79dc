"""Deploys of server functions: how long their calls are held, and what a deploy tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from msgspec import UNSET, UnsetType

from admin.deploy.plan import Plan
from admin.documents.deploys import DeployedServer, PythonCalls
from admin.views import calls_of
from registry.catalog import Deployed
from registry.model.profiles import Profile
from registry.model.revisions import Revision

WAIT_LEAST_S: Final = 55.0
WAIT_MOST_S: Final = 600.0
WAIT_FACTOR: Final = 1.5
"""Calls are held for this many times the start that the trial measured, within the two bounds."""


def with_wait(draft: Plan, profile: Profile | None) -> Plan:
    """Return the draft of a server function with a limit of held calls that fits its start, unless
    the request names one. Other drafts are returned unchanged."""
    if draft.names_wait_s or draft.revision.server is None:
        return draft
    start_s = profile.load_ms / 1e3 if profile else 0.0
    wait_s = round(max(WAIT_LEAST_S, min(WAIT_FACTOR * start_s, WAIT_MOST_S)), 1)
    limits = replace(draft.function.limits, wait_s=wait_s)
    return replace(draft, function=replace(draft.function, limits=limits))


def deployed_server(deployed: Deployed) -> DeployedServer | UnsetType:
    """Return what the result of a deploy says about a server, UNSET for a model function."""
    server = deployed.revision.server
    if server is None:
        return UNSET
    return DeployedServer(
        ready=server.ready,
        network=server.network,
        wait_s=deployed.function.limits.wait_s,
        host=server.host,
        found_host=server.found_host,
        image=server.image or UNSET,
        hidden=[] if server.image else UNSET,
    )


def deployed_interface(revision: Revision) -> PythonCalls | UnsetType:
    """Return how a Python function is called, UNSET for any other and before its trial."""
    return UNSET if revision.interface is None else calls_of(revision.interface)
