"""Attacks by pages in a browser, as tables: what a page tries, and what comes of it.

A script may use `one` (origin of the attacked function), `site` (origin of the dashboard), `mark`
(a path of the attacked function that counts what arrives), and the functions of PRELUDE.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from playwright.async_api import Page


class Attack(NamedTuple):
    """One attack: the body of an async function, and its result or the name of its error."""

    name: str
    script: str
    expected: str


ATTEMPT_S: Final = 4
"""Seconds after which an attack without a result counts as "late"."""
PRELUDE: Final = """
const add = (kind, fields) => new Promise((done) => {
  const node = Object.assign(document.createElement(kind), fields);
  node.onload = () => done("loaded");
  node.onerror = () => done("refused");
  node.oncanplay = () => done("loaded");
  document.body.append(node);
});
const attach = (kind, fields) => {
  document.body.append(Object.assign(document.createElement(kind), fields));
  return new Promise((done) => setTimeout(() => done("tried"), 500));  // no event tells its end
};
const inside = (url, target) => new Promise((done) => {
  addEventListener("message", ({data}) => { if (data.target === target) done(data.result); });
  const tell = `(result) => parent.postMessage({target: "${target}", result}, "*")`;
  const text = `<script>fetch("${target}", {credentials: "include"})
    .then(() => "read", (error) => error.name).then(${tell})<` + "/script>";
  const isBlob = url.startsWith("blob:");
  attach("iframe", {src: isBlob ? URL.createObjectURL(new Blob([text], {type: "text/html"}))
                                : url + encodeURIComponent(text)});
});
const submit = (url, fields = {}) => new Promise((done) => {
  const node = document.createElement("iframe");
  node.name = url;
  document.body.append(node);
  const form = Object.assign(document.createElement("form"), {method: "post"}, fields);
  form.action = url;
  form.target = url;
  form.innerHTML = "<input name=x value=y>";
  document.body.append(form);
  node.onload = () => done("sent");
  form.submit();
});
const send = async (url, options = {}) => {
  const answer = await fetch(url, {credentials: "include", ...options});
  return answer.type === "basic" || answer.type === "cors" ? String(answer.status) : answer.type;
};
const connect = (url, protocols = []) => new Promise((done) => {
  const socket = new WebSocket(url.replace("http", "ws"), protocols);
  socket.onmessage = (event) => done(event.data);
  socket.onerror = () => done("refused");
});
const worker = (Kind, url) => new Promise((done) => {
  const made = new Kind(url);
  made.onerror = () => done("refused");
  (made.port ?? made).onmessage = (event) => done(event.data);
});
const redirected = (url, status) =>
  `/say?status=${status}&field=Location:${encodeURIComponent(url)}`;
const script = (text) => URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
"""
RUN: Final = """async ([prelude, attacks, places, seconds]) => {
  const Try = (async () => {}).constructor;
  const names = Object.keys(places);
  const results = await Promise.all(attacks.map(async ([name, body]) => {
    const late = new Promise((done) => setTimeout(() => done("late"), seconds * 1000));
    const attempt = async () => {
      const run = new Try(...names, "mark", prelude + body);
      return String(await run(...Object.values(places), `${places.one}/mark/${name}`));
    };
    return [name, await Promise.race([attempt().catch((error) => error.name), late])];
  }));
  return Object.fromEntries(results);
}"""

REQUESTS: Final = (
    Attack("read", "return send(mark)", "TypeError"),
    Attack("read_without_cookies", "return send(mark, {credentials: 'omit'})", "TypeError"),
    Attack("read_by_header", "return send(mark, {headers: {'Fn-Key': 'x'}})", "TypeError"),
    Attack("delete", "return send(mark, {method: 'DELETE'})", "TypeError"),
    Attack("get_blind", "return send(mark, {mode: 'no-cors'})", "opaque"),
    Attack("post_blind", "return send(mark, {method: 'POST', mode: 'no-cors'})", "opaque"),
    Attack(
        "post_json_as_text",
        "return send(mark, {method: 'POST', mode: 'no-cors', body: '{\"code\": 1}'})",
        "opaque",
    ),
    Attack("post_kept_alive", "return send(mark, {method: 'POST', keepalive: true})", "TypeError"),
    Attack("beacon", "return navigator.sendBeacon(mark, 'x')", "true"),
    Attack("form", "return submit(mark)", "sent"),
    Attack("form_as_text", "return submit(mark, {enctype: 'text/plain'})", "sent"),
    Attack("form_with_file", "return submit(mark, {enctype: 'multipart/form-data'})", "sent"),
    Attack("socket", "return connect(one + '/ws')", "refused"),
    Attack("socket_with_protocol", "return connect(one + '/ws', ['x', 'fngate'])", "refused"),
    Attack("socket_below_fn", "return connect(site + '/fn/one/ws')", "refused"),
    Attack(
        "events",
        """return new Promise((done) => {
          const source = new EventSource(one + '/events', {withCredentials: true});
          source.onmessage = () => done('read');
          source.onerror = () => done('refused');
        })""",
        "refused",
    ),
    Attack("read_below_fn", "return send(site + '/fn/one/mark/below')", "TypeError"),
    Attack(
        "post_below_fn",
        "return send(site + '/fn/one/mark/below', {method: 'POST', mode: 'no-cors'})",
        "opaque",
    ),
    Attack("admin_state", "return send(site + '/admin/v1/functions')", "TypeError"),
    Attack(
        "admin_key",
        """return send(site + '/admin/v1/keys',
          {method: 'POST', mode: 'no-cors', body: '{"scopes": ["admin"]}'})""",
        "opaque",
    ),
    Attack("admin_form", "return submit(site + '/admin/v1/keys')", "sent"),
    Attack("admin_events", "return send(site + '/admin/v1/events')", "TypeError"),
    Attack("metrics", "return send(site + '/metrics')", "TypeError"),
    Attack("dashboard", "return send(site + '/ui/')", "TypeError"),
    Attack("ticket_by_post", "return send(one + '/.fngate/enter', {method: 'POST'})", "TypeError"),
    Attack("sign_out", "return send(one + '/.fngate/leave', {method: 'POST'})", "TypeError"),
)
"""Requests that a page sends by itself. Nothing of them may arrive."""

ELEMENTS: Final = (
    Attack("image", "return add('img', {src: mark})", "refused"),
    Attack(
        "image_with_cookie",
        "return add('img', {crossOrigin: 'use-credentials', src: mark})",
        "refused",
    ),
    Attack("script", "return add('script', {src: mark})", "refused"),
    Attack("module", "return (await import(one + '/sw.js')).x", "TypeError"),
    Attack("style", "return add('link', {rel: 'stylesheet', href: mark})", "refused"),
    Attack("preload", "return add('link', {rel: 'preload', as: 'image', href: mark})", "refused"),
    Attack("prefetch", "return add('link', {rel: 'prefetch', href: mark})", "refused"),
    Attack("video", "return add('video', {src: mark})", "refused"),
    Attack("frame", "return attach('iframe', {src: mark})", "tried"),
    Attack("frame_of_enter", "return attach('iframe', {src: one + '/.fngate/enter'})", "tried"),
    Attack("frame_of_leave", "return attach('iframe', {src: one + '/.fngate/leave'})", "tried"),
    Attack("frame_of_dashboard", "return attach('iframe', {src: site + '/ui/'})", "tried"),
    Attack(
        "frame_below_fn", "return attach('iframe', {src: site + '/fn/one/mark/below'})", "tried"
    ),
    Attack("object", "return attach('object', {data: mark})", "tried"),
    Attack("embed", "return attach('embed', {src: mark})", "tried"),
    Attack(
        "ping",
        """const done = attach("a", {href: "#", ping: mark});
        document.body.lastChild.click();
        return done""",
        "tried",
    ),
    Attack(
        "speculation",
        """const rules = {
          prefetch: [{urls: [mark], eagerness: "immediate"}],
          prerender: [{urls: [mark + "2"], eagerness: "immediate"}],
        };
        return attach("script", {type: "speculationrules", textContent: JSON.stringify(rules)})""",
        "tried",
    ),
    Attack("worker", "return worker(Worker, one + '/sw.js')", "SecurityError"),
    Attack(
        "imported_script",
        """return worker(Worker, script(
          `try { importScripts('${mark}'); postMessage('read'); }
           catch (error) { postMessage(error.name); }`))""",
        "NetworkError",
    ),
    Attack(
        "request_of_a_worker",
        """return worker(Worker, script(
          `fetch('${mark}', {credentials: 'include'})
             .then(() => postMessage('read'), (error) => postMessage(error.name))`))""",
        "TypeError",
    ),
    Attack("frame_of_data", "return inside('data:text/html,', mark)", "TypeError"),
    Attack("frame_of_a_blob", "return inside('blob:', mark)", "TypeError"),
)
"""Elements and workers that load what a page names. Nothing of them may arrive."""

REDIRECTS: Final = (
    Attack("redirected", "return send(redirected(mark, 302))", "TypeError"),
    Attack(
        "redirected_post",
        "return send(redirected(mark, 307), {method: 'POST', mode: 'no-cors', body: 'x'})",
        "opaque",
    ),
    Attack("redirected_form", "return submit(redirected(mark, 307))", "sent"),
    Attack("redirected_image", "return add('img', {src: redirected(mark, 302)})", "refused"),
    Attack("redirected_frame", "return attach('iframe', {src: redirected(mark, 302)})", "tried"),
    Attack(
        "redirected_below_fn",
        "return send(redirected(site + '/fn/one/mark/below', 302))",
        "TypeError",
    ),
)
"""Requests to the page's own server, which sends them on."""

NEIGHBOURS: Final = (
    Attack("local_storage", "return localStorage.length", "0"),
    Attack("session_storage", "return sessionStorage.length", "0"),
    Attack("databases", "return (await indexedDB.databases()).length", "0"),
    Attack("caches", "return (await caches.keys()).length", "0"),
    Attack("cookies", "return document.cookie", ""),
    Attack(
        "service_workers",
        "return (await navigator.serviceWorker.getRegistrations()).length",
        "0",
    ),
    Attack(
        "service_worker_of_another",
        "return navigator.serviceWorker.register(one + '/sw.js')",
        "SecurityError",
    ),
    Attack("locks", "return (await navigator.locks.query()).held.length", "0"),
    Attack(
        "channel",
        """return new Promise((done) => {
          new BroadcastChannel("talk").onmessage = () => done("heard");
          setTimeout(() => done("silent"), 300);
        })""",
        "silent",
    ),
    Attack(
        "common_domain",
        "document.domain = 'localhost'; return window.open(one + '/sw.js') === null",
        "SecurityError",
    ),
    Attack(
        "cookie_for_all",
        "document.cookie = 'tossed=1; domain=localhost; path=/'; return document.cookie",
        "",
    ),
    Attack(
        "window_of_another",
        """const opened = window.open(one + "/");
        for (let tries = 0; tries < 100; tries++) {
          await new Promise((done) => setTimeout(done, 30));
          opened.document;  // throws once the other page is there
        }
        return 'readable'""",
        "SecurityError",
    ),
    Attack(
        "window_of_the_dashboard",
        """const opened = window.open(site + "/ui/");
        for (let tries = 0; tries < 100 && !opened.closed; tries++) {
          await new Promise((done) => setTimeout(done, 30));
        }
        return opened.closed ? 'severed' : 'held'""",
        "severed",
    ),
)
"""What a page sees of the pages of others in the same browser."""

FOREIGN: Final = (
    Attack(
        "window_of_a_function",
        """const opened = window.open(one + "/");
        for (let tries = 0; tries < 100; tries++) {
          await new Promise((done) => setTimeout(done, 30));
          opened.document;  // throws once the other page is there
        }
        return 'readable'""",
        "SecurityError",
    ),
    Attack("frame_of_a_page", "return attach('iframe', {src: one + '/mark/framed'})", "tried"),
)
"""What a page of a site elsewhere tries besides."""

SANDBOXED: Final = (
    Attack("origin", "return self.origin", "null"),
    Attack("local_storage", "return localStorage.length", "SecurityError"),
    Attack("session_storage", "return sessionStorage.getItem('fngate.key')", "SecurityError"),
    Attack("databases", "return (await indexedDB.databases()).length", "SecurityError"),
    Attack("caches", "return (await caches.keys()).length", "SecurityError"),
    Attack("cookies", "return document.cookie", "SecurityError"),
    Attack("set_cookie", "document.cookie = 'fngate=x; path=/'; return 'set'", "SecurityError"),
    Attack("files", "return await navigator.storage.getDirectory()", "SecurityError"),
    Attack("service_worker", "return navigator.serviceWorker.register('sw.js')", "SecurityError"),
    Attack("shared_worker", "return worker(SharedWorker, script('0'))", "SecurityError"),
    Attack("window", "return window.open(site + '/ui/')", "null"),
    # Nothing keeps a page from showing another path of its host in the address bar.
    Attack("address_bar", "history.replaceState(null, '', '?x'); return 'changed'", "changed"),
    Attack("own_path", "return send('who')", "TypeError"),
    Attack("own_socket", "return connect(location.href + 'ws')", "refused"),
    Attack("dashboard_script", "return (await import(site + '/ui/index.js')).x", "TypeError"),
)
"""What a page below /fn/ can do with the origin that it shares with the dashboard."""


async def attempt(page: Page, attacks: tuple[Attack, ...], **places: str) -> dict[str, str]:
    """Run the attacks at once in a page; return what came of those that did not end as expected.

    `places`: the origins `one` and `site`.
    """
    tried = [attack[:2] for attack in attacks]
    ended: dict[str, Any] = await page.evaluate(RUN, [PRELUDE, tried, places, ATTEMPT_S])
    return {one.name: ended[one.name] for one in attacks if ended[one.name] != one.expected}
