"""Route table of the admin API: method, path, scope and handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiohttp import web

from admin.api.aliases import AliasRoutes
from admin.api.cost import CostRoutes
from admin.api.deploys import UploadRoutes
from admin.api.documents.routes import ABOUT, About, describe_route
from admin.api.environments import EnvironmentRoutes
from admin.api.events import EventRoutes
from admin.api.functions import FunctionRoutes
from admin.api.history import AdviceRoutes, TimelineRoutes
from admin.api.hosts import HostRoutes
from admin.api.images import ImageRoutes
from admin.api.keys import AccessRoutes, KeyRoutes, SessionRoutes
from admin.api.logs import ErrorRoutes, LogRoutes
from admin.api.operate import BackupRoutes, OperateRoutes
from admin.api.pages import PageRoutes
from admin.api.pools import PoolRoutes
from admin.api.secrets import SecretRoutes
from admin.api.usage import UsageRoutes
from gateway.admission.callers import Need
from gateway.openapi.routes import Route

Scoped = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Row(NamedTuple):
    """A route of the admin API. `path` is below the prefix."""

    method: str
    path: str
    need: Need
    handler: Scoped
    about: About

    def described(self) -> Route:
        """Return the route for the OpenAPI document."""
        return describe_route(self.method, self.path, self.need, self.about)


class Handlers(NamedTuple):
    """Handlers of the admin API, by subject."""

    functions: FunctionRoutes
    operate: OperateRoutes
    uploads: UploadRoutes
    keys: KeyRoutes
    access: AccessRoutes
    pools: PoolRoutes
    timeline: TimelineRoutes
    advice: AdviceRoutes
    logs: LogRoutes
    errors: ErrorRoutes
    events: EventRoutes
    session: SessionRoutes
    backup: BackupRoutes
    secrets: SecretRoutes
    images: ImageRoutes
    pages: PageRoutes
    aliases: AliasRoutes
    usage: UsageRoutes
    cost: CostRoutes
    hosts: HostRoutes
    environments: EnvironmentRoutes


def table(to: Handlers) -> list[Row]:
    """Return every route of the admin API. Raises KeyError for one without a description."""
    return [Row(*row, ABOUT[f"{row[0]} {row[1]}"]) for row in _rows(to)]


def _rows(to: Handlers) -> list[tuple[str, str, Need, Scoped]]:
    return [
        ("HEAD", "/blobs/{sha256}", "deploy", to.uploads.head_blob),
        ("PUT", "/blobs/{sha256}", "deploy", to.uploads.put_blob),
        ("POST", "/functions/{name}/revisions", "deploy", to.uploads.post_revision),
        ("GET", "/operations", "read", to.uploads.list_operations),
        ("GET", "/operations/{id}", "read", to.uploads.get_operation),
        ("DELETE", "/operations/{id}", "deploy", to.uploads.cancel_operation),
        ("GET", "/functions", "read", to.functions.list_functions),
        ("GET", "/functions/{name}", "read", to.functions.get_function),
        ("PATCH", "/functions/{name}", "deploy", to.operate.patch_function),
        ("DELETE", "/functions/{name}", "deploy", to.functions.remove_function),
        ("POST", "/functions/{name}/rollback", "deploy", to.operate.post_rollback),
        ("POST", "/functions/{name}/warm", "deploy", to.operate.warm),
        ("POST", "/functions/{name}/prepare", "deploy", to.operate.prepare),
        ("POST", "/functions/{name}/sleep", "deploy", to.operate.sleep),
        ("POST", "/functions/{name}/park", "deploy", to.operate.park),
        ("POST", "/functions/{name}/unpark", "deploy", to.operate.unpark),
        ("POST", "/functions/{name}/tickets", "invoke", to.pages.add_ticket),
        ("GET", "/functions/{name}/revisions", "read", to.functions.list_revisions),
        ("GET", "/functions/{name}/why", "read", to.functions.why),
        ("GET", "/functions/{name}/logs", "read", to.logs.logs),
        ("GET", "/functions/{name}/errors", "read", to.errors.errors),
        ("GET", "/functions/{name}/sample", "read", to.functions.sample),
        ("GET", "/functions/{name}/timeline", "read", to.timeline.of_function),
        ("GET", "/functions/{name}/advice", "read", to.advice.of_function),
        ("GET", "/aliases", "read", to.aliases.list_aliases),
        ("POST", "/aliases", "deploy", to.aliases.add_alias),
        ("DELETE", "/aliases", "deploy", to.aliases.remove_alias),
        ("GET", "/timeline", "read", to.timeline.of_all),
        ("GET", "/usage", "read", to.usage.get_usage),
        ("GET", "/cost", "read", to.cost.get_cost),
        ("GET", "/pools", "read", to.pools.list_pools),
        ("GET", "/replicas", "read", to.pools.list_replicas),
        ("GET", "/devices", "read", to.pools.list_devices),
        ("GET", "/events", "read", to.events.follow),
        ("GET", "/session", "read", to.session.get_session),
        ("GET", "/backup", "admin", to.backup.get_backup),
        ("GET", "/keys", "admin", to.keys.list_keys),
        ("POST", "/keys", "admin", to.keys.add_key),
        ("DELETE", "/keys/{id}", "admin", to.keys.remove_key),
        ("GET", "/access", "admin", to.access.get_access),
        ("PATCH", "/access", "admin", to.access.patch_access),
        ("POST", "/access/token", "admin", to.access.rotate_admin),
        ("GET", "/secrets", "admin", to.secrets.list_secrets),
        ("POST", "/secrets", "admin", to.secrets.set_secret),
        ("DELETE", "/secrets/{name}", "admin", to.secrets.remove_secret),
        ("GET", "/hosts", "read", to.hosts.list_hosts),
        ("POST", "/hosts", "admin", to.hosts.add_host),
        ("GET", "/hosts/{name}", "admin", to.hosts.get_host),
        ("PATCH", "/hosts/{name}", "admin", to.hosts.patch_host),
        ("DELETE", "/hosts/{name}", "admin", to.hosts.remove_host),
        ("POST", "/hosts/{name}/check", "admin", to.hosts.check_host),
        ("POST", "/images/prune", "admin", to.images.prune),
        ("GET", "/environments", "read", to.environments.list_environments),
        ("GET", "/environments/{id}", "read", to.environments.get_environment),
        ("DELETE", "/environments/{id}", "admin", to.environments.remove_environment),
        ("POST", "/environments/prune", "admin", to.environments.prune),
    ]
