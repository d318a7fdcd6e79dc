"""The API server of the double: HTTP over TLS, tokens, access rules, lists, watches and deletes."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from aiohttp import web

from tests.support.kubernetes import access_rules, admission
from tests.support.kubernetes.access_rules import Rule
from tests.support.kubernetes.errors import (
    Refused,
    conflict,
    expired,
    invalid,
    not_found,
)
from tests.support.kubernetes.faults import Fault, Faults
from tests.support.kubernetes.pace import Pace, elapse
from tests.support.kubernetes.patches import patched
from tests.support.kubernetes.selectors import Matches, selected
from tests.support.kubernetes.store import (
    NAMESPACES,
    PODS,
    RESOURCES,
    Change,
    Json,
    Resource,
    Store,
)
from tests.support.kubernetes.tokens import API_AUDIENCE, Tokens

REVIEWS: Final = Resource(
    "authentication.k8s.io/v1", "tokenreviews", "TokenReview", is_namespaced=False
)
ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io/v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    is_namespaced=False,
)
BODY_MAX: Final = 3 * 1024 * 1024
WATCH_S: Final = 1800
"""Seconds of a watch that names none."""
PATCHES: Final = {
    "application/merge-patch+json": False,
    "application/strategic-merge-patch+json": True,
}
BAD_NAME: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
OLD_PAGE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)
UPDATES: Final = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
VERBS: Final = {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch"}


class Nodes(Protocol):
    """The kubelets, as far as the API server asks them."""

    def log(self, pod: Json, container: str) -> bytes:
        """Return the output of a container. Raises Refused."""

    def woken(self) -> None:
        """Something has changed that the controllers may have to look at."""


@dataclass(frozen=True)
class Asked:
    """A request by its parts."""

    resource: Resource
    namespace: str
    name: str
    part: str
    """The subresource, "" for none."""
    verb: str
    query: dict[str, str]
    user: str


class Api:
    """Answers requests. `rules` are those of every account; `counts` has requests by verb and
    plural."""

    def __init__(self, store: Store, tokens: Tokens, pace: Pace, nodes: Nodes) -> None:
        self.faults = Faults()
        self.rules: Sequence[Rule] = access_rules.SERVER
        self.counts: Counter[tuple[str, str]] = Counter()
        self.has_claims = True
        """Whether the API group of dynamic resource allocation is there."""
        self.has_resize = True
        self._stamps: dict[tuple[str, str], list[str]] = {}
        self.port = 0
        self._store, self._tokens, self._pace, self._nodes = store, tokens, pace, nodes
        self._runner: web.AppRunner | None = None
        self._lists: dict[str, tuple[list[Json], int]] = {}
        self._watching: set[asyncio.Task[Any]] = set()

    async def open(self, context: ssl.SSLContext) -> None:
        """Listen, at the same port as before."""
        self._context = context
        application = web.Application(client_max_size=BODY_MAX)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "0.0.0.0", self.port, ssl_context=context, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """End all connections, and listen no more."""
        self.break_watches()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def reopen(self) -> None:
        """Listen again after `close`."""
        await self.open(self._context)

    def break_watches(self) -> None:
        """End the connections of all watches in the middle of a line."""
        for task in self._watching:
            task.cancel()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = self._read(request)
            self.counts[asked.verb, asked.resource.plural] += 1
            fault = self.faults.take(asked.verb, asked.resource.plural)
            if fault is None:
                return await self._perform(asked, request)
            if not fault.is_after:
                found = await self._failed(fault, request)
                return found or await self._perform(asked, request)
            answer = await self._perform(asked, request)
            return await self._failed(fault, request) or answer
        except Refused as refused:
            return web.json_response(refused.status(), status=refused.code, headers=refused.headers)
        finally:
            self._nodes.woken()

    async def _failed(self, fault: Fault, request: web.Request) -> web.Response | None:
        await elapse(fault.wait_s)
        if fault.refusal is not None:
            raise fault.refusal
        if fault.is_broken:
            assert request.transport is not None
            request.transport.abort()
        if fault.raw is not None:
            return web.Response(body=fault.raw, content_type="application/json")
        return None

    def _read(self, request: web.Request) -> Asked:
        """Return the parts of a request whose sender may make it. Raises Refused."""
        head, _, token = request.headers.get("Authorization", "").partition(" ")
        claims, why = self._tokens.check(token, [API_AUDIENCE])
        if head and (why or head != "Bearer"):
            raise Refused(401, "Unauthorized", "Unauthorized")
        asked = self._parse(request, claims["sub"] if head else "system:anonymous")
        access_rules.check(self.rules if head else (), asked)
        return asked

    def _parse(self, request: web.Request, user: str) -> Asked:
        steps = [step for step in request.path.split("/") if step]
        lost = Refused(404, "NotFound", "the server could not find the requested resource")
        size = {"api": 2, "apis": 3}.get(steps[0] if steps else "", 0)
        if not size or len(steps) <= size:
            raise lost
        version, rest = "/".join(steps[1:size]), steps[size:]
        namespace = ""
        if rest[0] == NAMESPACES.plural and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, part = (*rest, "", "")[:3]
        known = {
            (one.api_version, one.plural): one for one in (*RESOURCES, REVIEWS, ACCESS_REVIEWS)
        }
        found = known.get((version, plural))
        if found is None or (found.group == access_rules.DRA and not self.has_claims):
            raise lost
        query = {key: values[-1] for key, values in parse_qs(request.query_string).items()}
        if request.method not in VERBS:
            raise Refused(405, "MethodNotAllowed", "the server does not allow this method")
        verb = VERBS[request.method]
        if verb == "get" and not name:
            verb = "watch" if query.get("watch") in ("true", "1") else "list"
        return Asked(found, namespace, name, part, verb, query, user)

    async def _perform(self, asked: Asked, request: web.Request) -> web.StreamResponse:
        if asked.verb == "watch":
            return await self._watch(asked, request)
        if asked.part == "log" and asked.resource == PODS:
            return self._log(asked)
        match asked.verb:
            case "list":
                answer, code = self._list(asked), 200
            case "get":
                answer, code = self._get(asked), 200
            case "create":
                answer, code = self._create(asked, await _body(request)), 201
            case "delete":
                answer, code = self._delete(asked, await _body(request)), 200
            case _:
                kind = request.content_type
                if kind not in PATCHES:
                    raise Refused(415, "UnsupportedMediaType", f"unsupported media type {kind}")
                body = await _body(request)
                answer, code = self._patch(asked, body, is_strategic=PATCHES[kind]), 200
        return web.json_response(answer, status=code)

    def _get(self, asked: Asked) -> Json:
        found = self._store.get(asked.resource, asked.name, asked.namespace)
        if found is None:
            raise not_found(asked.resource, asked.name)
        return found

    # Lists and watches

    def _list(self, asked: Asked) -> Json:
        query = asked.query
        if token := query.get("continue", ""):
            if token not in self._lists:
                raise Refused(410, "Expired", OLD_PAGE)
            items, version = self._lists.pop(token)
        else:
            matches = selected(query.get("labelSelector", ""), query.get("fieldSelector", ""))
            if (asked_for := _version(asked)) > self._store.version:
                text = f"Too large resource version: {asked_for}, current: {self._store.version}"
                raise Refused(504, "Timeout", f"Timeout: {text}")
            every = self._store.every(asked.resource, asked.namespace)
            items, version = [one for one in every if matches(one)], self._store.version
        metadata: Json = {"resourceVersion": str(version)}
        limit = int(query.get("limit", 0)) or len(items)
        if len(items) > limit:
            metadata["continue"] = f"page-{version}-{len(items) - limit}"
            metadata["remainingItemCount"] = len(items) - limit
            self._lists[metadata["continue"]] = items[limit:], version
        elif (between := self.faults.between) is not None:
            self.faults.between = None
            asyncio.get_running_loop().call_soon(between, asked.resource.plural)
        resource = asked.resource
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**kind, "metadata": metadata, "items": items[:limit]}

    def expire(self) -> None:
        """Forget all changes and pages; open watches are told so."""
        self._store.expire()
        self._lists.clear()
        for task in self._watching:
            task.cancel("expired")

    async def _watch(self, asked: Asked, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watching.add(task)
        try:
            await self._stream(asked, response)
            await response.write_eof()
        except asyncio.CancelledError as error:
            if request.transport is None:
                raise
            task.uncancel()
            if error.args == ("expired",):
                await response.write(_line("ERROR", expired(0, self._store.oldest).status()))
                await response.write_eof()
            else:
                await response.write(b'{"type":"MODIFIED","object":{"ki')
                request.transport.abort()
        except ConnectionError:
            pass
        finally:
            self._watching.discard(task)
        return response

    async def _stream(self, asked: Asked, response: web.StreamResponse) -> None:
        """Write events until the watch's time is over. Raises ConnectionError."""
        query, queue = asked.query, asyncio.Queue[Change]()
        matches = selected(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        end = self._store.watch(queue.put_nowait)
        loop = asyncio.get_running_loop()
        until = loop.time() + int(query.get("timeoutSeconds", WATCH_S))
        try:
            for line in self._before(asked, matches):
                await response.write(line)
                if b'"ERROR"' in line[:20]:
                    return
            bookmark_s = loop.time() + self._pace.bookmark_s
            while (now := loop.time()) < until:
                change = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(until, max(bookmark_s, now)) - now):
                        change = await queue.get()
                if self.faults.are_watches_stalled:
                    await self.faults.moved.wait()
                if change is not None:
                    for line in _lines(change, asked, matches):
                        await response.write(line)
                if loop.time() >= bookmark_s:
                    bookmark_s = loop.time() + self._pace.bookmark_s
                    if query.get("allowWatchBookmarks") in ("true", "1") and queue.empty():
                        await response.write(self._bookmark(asked.resource))
        finally:
            end()

    def _before(self, asked: Asked, matches: Matches) -> Iterator[bytes]:
        """Yield what a watch begins with."""
        version = _version(asked)
        if version == 0:
            for one in self._store.every(asked.resource, asked.namespace):
                if matches(one):
                    yield _line("ADDED", one)
            return
        changes = self._store.since(asked.resource, version)
        if changes is None:
            yield _line("ERROR", expired(version, self._store.oldest).status())
            return
        for change in changes:
            yield from _lines(change, asked, matches)

    def _bookmark(self, resource: Resource) -> bytes:
        metadata = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        kind = {"kind": resource.kind, "apiVersion": resource.api_version}
        return _line("BOOKMARK", {**kind, "metadata": metadata})

    # Changes

    def _create(self, asked: Asked, body: Json) -> Json:
        resource = asked.resource
        if resource == REVIEWS:
            return self._review(body)
        if resource == ACCESS_REVIEWS:
            wanted = body["spec"]["resourceAttributes"]
            is_allowed = access_rules.allows(
                self.rules,
                wanted.get("verb", ""),
                wanted.get("group", ""),
                "/".join(filter(None, (wanted.get("resource"), wanted.get("subresource")))),
            )
            return {**body, "metadata": {}, "status": {"allowed": is_allowed}}
        made = self._named(asked, body)
        name = made["metadata"]["name"]
        if resource == PODS:
            made = admission.admit(self._store, made)
        if "stringData" in made:
            made["data"] = {**made.get("data", {}), **_encoded(made.pop("stringData"))}
        if there := self._store.get(resource, name, asked.namespace):
            is_ending = "deletionTimestamp" in there["metadata"]
            text = "object is being deleted: " if is_ending else ""
            text += f'{resource.qualified} "{name}" already exists'
            raise Refused(409, "AlreadyExists", text)
        if asked.query.get("dryRun") == "All":
            return {**made, "metadata": {**made["metadata"], "uid": "", "resourceVersion": ""}}
        return self._store.add(resource, made)

    def _review(self, body: Json) -> Json:
        spec = body.get("spec") or {}
        if not spec.get("token"):
            text = "token is required for TokenReview in authentication"
            raise Refused(400, "BadRequest", text)
        return {**body, "metadata": {}, "status": self._tokens.review(spec)}

    def _named(self, asked: Asked, body: Json) -> Json:
        """Return a new object with its namespace. Raises Refused for a name that is none."""
        resource = asked.resource
        metadata = body.get("metadata") or {}
        name = str(metadata.get("name", ""))
        if not name:
            raise invalid(resource, name, "metadata.name: Required value: name or generateName")
        if not admission.NAME.fullmatch(name):
            raise invalid(resource, name, f'metadata.name: Invalid value: "{name}": {BAD_NAME}')
        if resource.is_namespaced:
            if metadata.setdefault("namespace", asked.namespace) != asked.namespace:
                text = "the namespace of the provided object does not match the namespace sent on"
                raise Refused(400, "BadRequest", f"{text} the request")
            if self._store.get(NAMESPACES, asked.namespace) is None:
                raise not_found(NAMESPACES, asked.namespace)
        return {**body, "metadata": metadata}

    def _delete(self, asked: Asked, options: Json) -> Json:
        found = self._get(asked)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != found["metadata"]["uid"]:
            why = f"the UID in the precondition ({uid}) does not match the UID in record"
            own = f"{why} ({found['metadata']['uid']}). The object might have been deleted and"
            kind = asked.resource.kind
            raise conflict(asked.resource, asked.name, f"{own} then recreated", kind)
        if "All" in (options.get("dryRun") or asked.query.get("dryRun", "")):
            return found
        grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
        if asked.resource == PODS:
            return self.delete_pod(found, None if grace is None else int(grace))
        self._store.remove(asked.resource, found)
        details = {"name": asked.name, "kind": asked.resource.plural}
        said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**said, "details": {**details, "uid": found["metadata"]["uid"]}}

    def delete_pod(self, pod: Json, grace_s: int | None = None) -> Json:
        """Ask for the end of a Pod, or remove it if there is nothing to end or no grace."""
        if grace_s is None:
            grace_s = int(pod["spec"]["terminationGracePeriodSeconds"])
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in admission.FINAL:
            grace_s = 0
        metadata = pod["metadata"]
        is_first = not metadata.get("deletionTimestamp")
        if not is_first and grace_s >= metadata["deletionGracePeriodSeconds"] and grace_s > 0:
            return pod

        def end(one: Json) -> None:
            one["metadata"]["deletionTimestamp"] = self._store.now(grace_s)
            one["metadata"]["deletionGracePeriodSeconds"] = grace_s

        stored = self._store.change(PODS, pod, end, is_spec=is_first)
        if grace_s == 0:
            self._store.remove(PODS, stored)
        return stored

    def _patch(self, asked: Asked, body: Json, *, is_strategic: bool) -> Json:
        found = self._get(asked)
        if asked.part == "resize":
            return self._resize(found, asked, body, is_strategic=is_strategic)
        made = patched(found, body, is_strategic=is_strategic)
        if asked.resource == PODS and made.get("spec") != found.get("spec"):
            raise invalid(PODS, asked.name, UPDATES)
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted and wanted != found["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version"
            raise conflict(asked.resource, asked.name, f"{why} and try again")
        return self._store.change(asked.resource, found, lambda one: one.update(made))

    def _resize(self, pod: Json, asked: Asked, body: Json, *, is_strategic: bool) -> Json:
        if not self.has_resize:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        spec = patched(pod["spec"], body.get("spec") or {}, is_strategic=is_strategic)
        before = [{**one, "resources": {}} for one in pod["spec"]["containers"]]
        if [{**one, "resources": {}} for one in spec["containers"]] != before:
            raise invalid(PODS, asked.name, "spec: Forbidden: only resources may be resized")
        admission.check_resources({"metadata": pod["metadata"], "spec": spec})
        admission.check_room(self._store, {**pod, "spec": spec})
        return self._store.change(PODS, pod, lambda one: one.update(spec=spec), is_spec=True)

    def _log(self, asked: Asked) -> web.Response:
        pod = self._get(asked)
        known = [
            one["name"]
            for one in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
        ]
        container = asked.query.get("container", known[0] if len(known) == 1 else "")
        if not container:
            choose = f"choose one of: [{' '.join(known)}]"
            text = f"a container name must be specified for pod {asked.name}, {choose}"
            raise Refused(400, "BadRequest", text)
        if container not in known:
            text = f"container {container} is not valid for pod {asked.name}"
            raise Refused(400, "BadRequest", text)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        data = self._nodes.log(pod, container)
        if asked.query.get("timestamps") == "true":
            data = self._stamped(pod, container, data, asked.query.get("sinceTime", ""))
        if limit := asked.query.get("limitBytes"):
            data = data[: int(limit)]
        return web.Response(body=data, content_type="text/plain")

    def _stamped(self, pod: Json, container: str, data: bytes, since: str) -> bytes:
        """Return the whole lines of an output since a second, each behind the time at which it was
        seen first. Lines that were seen together are a nanosecond apart."""
        lines = data.split(b"\n")[:-1]
        stamps = self._stamps.setdefault((pod["metadata"]["uid"], container), [])
        now = datetime.now(UTC)
        for number in range(len(stamps), len(lines)):
            stamps.append(f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06}{number % 1000:03}Z")
        shown = zip(stamps, lines, strict=False)
        said = [f"{stamp} ".encode() + one for stamp, one in shown if stamp >= since.rstrip("Z")]
        return b"".join(one + b"\n" for one in said)


def _version(asked: Asked) -> int:
    """Return the version that a request names, 0 for none. Raises Refused."""
    text = asked.query.get("resourceVersion", "") or "0"
    try:
        return int(text)
    except ValueError:
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}"'
        raise Refused(400, "BadRequest", f"{why}: invalid syntax") from None


async def _body(request: web.Request) -> Json:
    data = await request.read()
    try:
        body = json.loads(data or b"{}")
    except ValueError as error:
        raise Refused(400, "BadRequest", f"the object provided is unrecognized: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "BadRequest", "the object provided is unrecognized")
    return body


def _encoded(texts: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def _line(type: str, object: Json) -> bytes:
    return json.dumps({"type": type, "object": object}).encode() + b"\n"


def _lines(change: Change, asked: Asked, matches: Matches) -> Iterator[bytes]:
    """Yield a change as a watch has it: an object that begins or ceases to match comes or goes."""
    if change.resource != asked.resource:
        return
    if asked.namespace not in ("", change.object["metadata"].get("namespace", "")):
        return
    was = change.before is not None and matches(change.before)
    matched = matches(change.object)
    if change.type == "DELETED" or (was and not matched):
        if was or matched:
            yield _line("DELETED", change.object)
    elif matched:
        yield _line("MODIFIED" if was else "ADDED", change.object)
