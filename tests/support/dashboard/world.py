"""Simulated state of a server: many functions that wake, answer, fail and sleep by a script.

All values derive from a seed and the number of `step` calls, so a test and a benchmark see the
same. Shapes are those of the admin API: function lines, replicas, devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

PHASES: Final = ("place", "evict", "start", "import", "bind", "read", "load", "first_run")
PARK: Final = {"off": "", "wake_ms": 2_100, "parked": []}
PAGE: Final = 200
NOUNS: Final = [
    "digits",
    "faces",
    "speech",
    "intents",
    "ocr",
    "embed",
    "rerank",
    "toxicity",
    "translate",
    "upscale",
    "depth",
    "segments",
    "keywords",
    "sentiment",
    "summaries",
    "pose",
    "plates",
    "captions",
    "denoise",
    "web",
]
SERVER: Final = "web"
"""The only server function among the nouns."""
ERRORS: Final = (
    ("execution_timeout", "the run took longer than 10 s"),
    ("replica_died", "replica {replica} was killed by SIGKILL while it ran the request"),
    ("queue_full", "64 requests wait for {name} already"),
    ("function_failed", "load: ONNX Runtime: Protobuf parsing failed"),
)
GIB: Final = 1024
WAKING_MAX: Final = 12

Event = tuple[str, dict[str, Any]]


class World:
    """World with `functions` functions and `devices` devices, starting at the Unix time `now_s`.
    The devices are on this machine and on `hosts` others, in turn."""

    def __init__(
        self, functions: int, devices: int, now_s: float, seed: int = 0, hosts: int = 0
    ) -> None:
        self.random = Random(seed)
        self.now_s = self.started_s = now_s
        names = ["local", *(f"gpu{at + 2}" for at in range(hosts))]
        self.hosts = {name: self._host(name, devices // len(names)) for name in names}
        self.devices = {one["id"]: one for one in map(self._device, range(devices))}
        self.functions = {one["name"]: one for one in map(self._function, range(functions))}
        self.replicas: dict[str, dict[str, Any]] = {}
        self._made = 0
        for name in list(self.functions):
            if self.random.random() < 0.3:
                self._wake(name)
                while self.functions[name]["state"] == "waking":
                    self._next_phase(name)
                self._serve(name)
        for device in self.devices.values():
            self._load(device)

    def snapshot(self) -> Iterator[Event]:
        """Return the events that describe the whole state to a new subscriber."""
        yield "reset", {"reason": "a new subscriber", "server": self.server}
        for kind in ("hosts", "devices", "replicas", "functions"):
            items = list(getattr(self, kind).values())
            for start in range(0, len(items), PAGE):
                yield kind, {"items": items[start : start + PAGE]}
        yield "ready", {}

    @property
    def server(self) -> dict[str, Any]:
        """Return the server's own line."""
        return {"version": "0.1.0", "driver": "docker", "started_s": self.started_s, "workers": 1}

    def beat(self) -> Event:
        """Return the per-second totals."""
        lines = self.functions.values()
        failing = [line["name"] for line in lines if line["state"] == "failing"]
        reasons = [f"{len(failing)} failing: {', '.join(failing[:3])}"] if failing else []
        return "beat", {
            "at_s": self.now_s,
            "held": sum(line["held"] for line in lines),
            "in_flight": sum(line["in_flight"] for line in lines),
            "rate": round(sum(line["rate"] for line in lines), 1),
            "readyz": {"status": "degraded" if reasons else "ok", "reasons": reasons},
        }

    def step(self) -> list[Event]:
        """Return the next events; most are figures of a few functions."""
        if not self.functions:
            return []
        names = self._in_state()
        luck = self.random.random()
        if names["waking"] and luck < 0.35:
            return self.advance(self.random.choice(names["waking"]))
        if luck < 0.45 and len(names["waking"]) < WAKING_MAX:
            return self.advance(self.random.choice(names["cold"] or names["warm"]))
        if names["failing"] and luck < 0.46:
            return self.advance(self.random.choice(names["failing"]))
        if luck < 0.54 and names["warm"]:
            return self.advance(self.random.choice(names["warm"]))
        if luck < 0.66 and self.devices:
            return [self._load(self.random.choice(list(self.devices.values())))]
        some = self.random.sample(names["warm"], min(len(names["warm"]), 4))
        for name in some:
            self._serve(name)
        return [self._told(*some)] if some else []

    def _in_state(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {"cold": [], "waking": [], "warm": [], "failing": []}
        for name, line in self.functions.items():
            names.setdefault(line["state"], []).append(name)
        return names

    def advance(self, name: str) -> list[Event]:
        """Advance a function to its next state."""
        state = self.functions[name]["state"]
        if state == "waking":
            return self.fail(name) if self.random.random() < 0.02 else self._next_phase(name)
        if state == "warm":
            return self.rest(name) if self.random.random() < 0.7 else self.error(name)
        return self.wake(name)

    def wake(self, name: str, gpus: int = 1) -> list[Event]:
        """Start a cold start on so many devices: the first or another one."""
        return self._wake(name, gpus)

    def warm(self, name: str) -> list[Event]:
        """Advance a function until it is ready."""
        events = [] if self.functions[name]["state"] in ("waking", "warm") else self._wake(name)
        while self.functions[name]["state"] == "waking":
            events += self._next_phase(name)
        return events

    def rest(self, name: str) -> list[Event]:
        """Scale a function to zero."""
        events = self._release(name)
        self._put(name, "cold", f"idle for {self.functions[name]['idle_s']:g} s")
        return [*events, self._said(name, "sleep"), self._told(name)]

    def park(self, name: str) -> list[Event]:
        """Let the replicas of a warm function sleep."""
        mine = [one for one in self.replicas.values() if one["function"] == name]
        for one in mine:
            kept = {"residue_mib": 320.0, "host_mib": 20_480.0, "ends_s": self.now_s + 86_400}
            why = {"state": "parked", "why": "asked for", "since_s": self.now_s}
            self.replicas[one["id"]] = {**one, **kept, **why}
        keys = ("id", "devices", "since_s", "ends_s", "residue_mib", "host_mib", "why")
        rows = [{key: self.replicas[one["id"]][key] for key in keys} for one in mine]
        reason = "asleep in host memory, wakes in about 2.1 s"
        self._put(name, "parked", reason, ready_in_ms=2_100.0, park={**PARK, "parked": rows})
        return self._moved(name)

    def unpark(self, name: str) -> list[Event]:
        """Let the replicas of a parked function serve again."""
        awake = {"state": "ready", "residue_mib": None, "ends_s": None, "since_s": self.now_s}
        phases = {"place": 0.2, "wake": 1_900.0, "verify": 180.0}
        for one in [one for one in self.replicas.values() if one["function"] == name]:
            self.replicas[one["id"]] = {**one, **awake, "phases": phases}
        self._put(name, "warm", "ready", ready=1, wanted=1, ready_in_ms=0.0, park=PARK)
        return self._moved(name)

    def _moved(self, name: str) -> list[Event]:
        """Return the events of a function whose replicas have changed on their devices."""
        mine = [one for one in self.replicas.values() if one["function"] == name]
        devices = {device: None for one in mine for device in one["devices"]}
        placed = [event for device in devices for event in self._placed(device)]
        return [("replicas", {"items": mine}), *placed, self._told(name)]

    def fail(self, name: str) -> list[Event]:
        """Make a function fail to load."""
        events = self._release(name)
        self._put(name, "failing", "load: the model needs opset 27, the engine has 24")
        return [*events, self._said(name, "fail"), self._told(name)]

    def error(self, name: str) -> list[Event]:
        """Answer one of its requests with an error."""
        line = self.functions[name]
        replicas = [one["id"] for one in self.replicas.values() if one["function"] == name]
        code, text = self.random.choice(ERRORS)
        replica = replicas[0] if replicas else None
        detail = text.format(name=name, replica=replica)
        fields = {"function": name, "revision": line["revision"], "replica": replica}
        more = {"request_id": f"req-{self._number()}", "at_s": self.now_s, "count": 1}
        return [("error", {**fields, "code": code, "detail": detail, **more})]

    def remove(self, name: str) -> list[Event]:
        """Remove a function."""
        events = self._release(name)
        del self.functions[name]
        return [*events, ("gone", {"functions": [name], "replicas": []})]

    def change(self, name: str, **fields: Any) -> list[Event]:
        """Set fields of a function's line."""
        self.functions[name] = {**self.functions[name], **fields}
        return [self._told(name)]

    def lose(self, host: str, reason: str) -> list[Event]:
        """Make a host unreachable."""
        self.hosts[host] = {**self.hosts[host], "state": "unreachable", "reason": reason}
        return [("hosts", {"items": [self.hosts[host]]})]

    def remove_host(self, host: str) -> list[Event]:
        """Remove a host with its devices, on which nothing runs any more."""
        gone = [id for id, device in self.devices.items() if device["host"] == host]
        for id in gone:
            del self.devices[id]
        del self.hosts[host]
        return [("gone", {"functions": [], "replicas": [], "hosts": [host], "devices": gone})]

    def _wake(self, name: str, gpus: int = 1) -> list[Event]:
        device = self.random.choice(list(self.devices)) if self.devices else "none"
        host = self.devices[device]["host"] if device in self.devices else "local"
        near = [id for id, one in self.devices.items() if one["host"] == host]
        devices = near[:gpus] if gpus > 1 else [device]
        line = self.functions[name]
        number = self._number()
        replica = {
            "id": f"r{number}",
            "pool": f"default/{line['revision']}",
            "function": name,
            "revision": line["revision"],
            "device": devices[0],
            "devices": devices,
            "host": host,
            "role": "serve",
            "state": "starting",
            "since_s": self.now_s,
            "adopted": False,
            "limit": 8,
            "memory_mib": float(self.random.randint(80, 4000)),
            "phases": {},
            "why": "a request waits",
            "trouble": "",
            "residue_mib": None,
            "host_mib": 0.0,
            "ends_s": None,
        }
        self.replicas[replica["id"]] = replica
        self._put(name, "waking", "a request waits", phase="place", wanted=1, held=1)
        self.functions[name]["devices"] = devices
        self.functions[name]["ready_in_ms"] = float(self.random.randint(400, 9000))
        events = [("replicas", {"items": [replica]}), self._said(name, "wake"), self._told(name)]
        return [*events, *(event for one in devices for event in self._placed(one))]

    def _next_phase(self, name: str) -> list[Event]:
        line = self.functions[name]
        at = PHASES.index(line["phase"])
        mine = next(one for one in self.replicas.values() if one["function"] == name)
        phases = {**mine["phases"], line["phase"]: round(self.random.uniform(0.5, 300), 1)}
        is_ready = at + 1 == len(PHASES)
        state = "ready" if is_ready else "loading" if at >= 4 else "starting"
        mine = {**mine, "phases": phases, "state": state}
        self.replicas[mine["id"]] = mine
        if not is_ready:
            left_ms = round(max(100.0, (line["ready_in_ms"] or 0) * 0.7))
            self._put(name, "waking", "a request waits", phase=PHASES[at + 1], wanted=1)
            self.functions[name]["ready_in_ms"] = float(left_ms)
            return [("replicas", {"items": [mine]}), self._told(name)]
        self._put(name, "warm", "ready", ready=1, wanted=1, ready_in_ms=0.0)
        cold = {"name": name, "number": int(line["revision"].partition("@")[2])}
        cold |= {"replica": mine["id"], "device_kind": self.devices[mine["device"]]["kind"]}
        cold |= {"devices": mine["devices"], "host": mine["host"]}
        cold |= {"at_s": self.now_s, "total_ms": round(sum(phases.values()), 1)}
        told = ("cold_start", {**cold, "phases": phases, "outcome": "ready"})
        return [("replicas", {"items": [mine]}), told, self._said(name, "ready"), self._told(name)]

    def _serve(self, name: str) -> None:
        """Update the figures of a function that is being called."""
        line, random = self.functions[name], self.random
        rate = round(max(0.0, line["rate"] + random.uniform(-4, 5)), 1)
        p50 = round(random.uniform(0.6, 40), 2) if rate else None
        is_server = line["engine"] == "server"
        self.functions[name] = {
            **line,
            "rate": rate,
            "held": random.choice((0, 0, 0, 1, 3)),
            "in_flight": random.randint(0, 6) if rate else 0,
            "p50_ms": p50,
            "p95_ms": round(p50 * random.uniform(1.2, 6), 2) if p50 else None,
            "first_byte_p50_ms": round(p50 / 4, 2) if p50 and is_server else None,
            "first_byte_p95_ms": round(p50, 2) if p50 and is_server else None,
            "sleeps_at_s": None if rate else self.now_s + line["idle_s"] * random.random(),
        }

    def _put(self, name: str, state: str, reason: str, **fields: Any) -> None:
        quiet = {"ready": 0, "wanted": 0, "held": 0, "in_flight": 0, "rate": 0.0, "phase": None}
        quiet |= dict.fromkeys(("first_byte_p50_ms", "first_byte_p95_ms"))
        quiet |= {"p50_ms": None, "p95_ms": None, "sleeps_at_s": None, "ready_in_ms": None}
        line = {**self.functions[name], **quiet, **fields, "state": state, "reason": reason}
        if state in ("cold", "failing"):
            line["devices"] = []
        self.functions[name] = {**line, "since_s": self.now_s}

    def _release(self, name: str) -> list[Event]:
        gone = [one for one in self.replicas.values() if one["function"] == name]
        for one in gone:
            del self.replicas[one["id"]]
        events: list[Event] = [("gone", {"functions": [], "replicas": [one["id"] for one in gone]})]
        for device in sorted({id for one in gone for id in one["devices"]}):
            events += self._placed(device)
        return events

    def _placed(self, device_id: str) -> list[Event]:
        device = self.devices.get(device_id)
        if device is None:
            return []
        mine = [one for one in self.replicas.values() if device_id in one["devices"]]
        residue = sum(one["residue_mib"] for one in mine if one["state"] == "parked")
        held = [one for one in mine if one["state"] != "parked"]
        charged = residue + round(sum(one["memory_mib"] for one in held))
        charged = min(device["memory_mib"], charged)
        device["replicas"] = [one["id"] for one in held]
        device["parked"] = [one["id"] for one in mine if one["state"] == "parked"]
        device["residue_mib"], device["charged_mib"] = round(residue), charged
        if device["state"] in ("free", "taken"):
            device["state"] = "taken" if held else "free"
        if device["total_mib"]:
            device["used_mib"] = min(device["total_mib"], round(charged * 0.8) + 600)
        return [("devices", {"items": [device]})]

    def _load(self, device: dict[str, Any]) -> Event:
        device["busy"] = round(self.random.random() ** 2, 3) if device["replicas"] else 0.0
        return "devices", {"items": [device]}

    def _said(self, name: str, what: str) -> Event:
        texts = {
            "wake": "start a replica: 1 request waits, 0 ready",
            "ready": "ready: the first request is served",
            "sleep": "stop the replica: nobody called for the idle time",
            "fail": "give up for 30 s: loading failed 3 times in a row",
        }
        line = self.functions[name]
        fields = {"function": name, "revision": line["revision"], "at_s": self.now_s}
        return "decision", {**fields, "text": texts[what]}

    def _told(self, *names: str) -> Event:
        return "functions", {"items": [self.functions[name] for name in names]}

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _function(self, at: int) -> dict[str, Any]:
        noun = NOUNS[at % len(NOUNS)]
        name = noun if at < len(NOUNS) else f"{noun}-{at // len(NOUNS)}"
        return {
            "name": name,
            "revision": f"{name}@{1 + at % 7}",
            "state": "cold",
            "reason": "no calls",
            "ready": 0,
            "wanted": 0,
            "held": 0,
            "in_flight": 0,
            "min": 0,
            "max": 1 + at % 4,
            "idle_s": (60.0, 300.0, 900.0)[at % 3],
            "labels": {"team": ("vision", "voice", "text")[at % 3]} if at % 2 else {},
            "engine": "server" if noun == SERVER else "onnx",
            "since_s": self.now_s - at,
            "cold_start_ms": 800.0 + at % 900,
            "ready_in_ms": None,
            "created_s": self.now_s - 86_400,
            "rate": 0.0,
            "p50_ms": None,
            "p95_ms": None,
            "first_byte_p50_ms": None,
            "first_byte_p95_ms": None,
            "sleeps_at_s": None,
            "phase": None,
            "devices": [],
            "golden": "none",
            "trouble": "",
            "park": PARK if noun == SERVER else None,
        }

    def _host(self, name: str, devices: int) -> dict[str, Any]:
        is_local = name == "local"
        return {
            "name": name,
            "address": "" if is_local else f"nn@{name}.example",
            "state": "up",
            "reason": "",
            "since_s": self.now_s - 600,
            "labels": {"host": name} if is_local else {"host": name, "zone": "a"},
            "driver": "docker",
            "engine_version": "28.3.1",
            "rtt_ms": None if is_local else 0.41,
            "agent": "",
            "cpu_slots": 8,
            "gpus": devices,
            "replicas": 0,
            "disk_free_mib": None if is_local else 412 * GIB,
            "cached_files": 0 if is_local else 12,
            "cached_mib": 0 if is_local else 20 * GIB,
            "images": 0 if is_local else 2,
            "clock_offset_s": None if is_local else 0.004,
            "transfer": "digits@3: 40 % of 97 MiB" if name == "gpu2" else "",
        }

    def _device(self, at: int) -> dict[str, Any]:
        is_gpu = at % 4 != 3
        total = (80 if at % 2 else 141) * GIB if is_gpu else None
        host = list(self.hosts)[at % len(self.hosts)]
        id = f"gpu-{at:03d}" if is_gpu else f"cpu{at // 4}"
        return {
            "id": id if host == "local" else f"{host}/{id}",
            "host": host,
            "kind": "cuda" if is_gpu else "cpu",
            "name": ("NVIDIA H100" if at % 2 else "NVIDIA H200") if is_gpu else None,
            "index": str(at) if is_gpu else None,
            "capability": "9.0" if is_gpu else None,
            "driver": "580.95" if is_gpu else None,
            "bank": "host" if host == "local" else f"{host}/host",
            "memory_mib": total - 2 * GIB if total else 8 * GIB,
            "charged_mib": 0,
            "used_mib": 600 if is_gpu else None,
            "total_mib": total,
            "foreign_mib": 0 if is_gpu else None,
            "state": "quarantined" if at % 17 == 9 else "free",
            "reason": "3 replicas in a row died on it" if at % 17 == 9 else "",
            "replicas": [],
            "parked": [],
            "residue_mib": 0,
            "busy": 0.0,
        }
