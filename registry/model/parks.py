"""Parks: the table [park] of a revision, and the engines that have a preset."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final, Literal

EngineName = Literal["", "vllm", "sglang"]
PARK_S: Final = 86_400.0
"""Default of the longest park, seconds."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call to an engine."""

    path: str
    """Path and query."""
    method: str = "POST"
    """Method."""
    body: str = ""
    """A JSON text, "" for no body."""


@dataclass(frozen=True, slots=True)
class NeededFlag:
    """A flag without which an engine does not come back right."""

    flag: str
    """Word of its command."""
    reason: str
    """What happens without it."""


@dataclass(frozen=True, slots=True)
class EnginePreset:
    """What is known of an engine that can sleep."""

    sleep: EngineCall
    """Puts it to sleep."""
    wake: EngineCall
    """Wakes it."""
    check: EngineCall | None
    """Says whether it sleeps; None if it does not."""
    control: tuple[str, ...]
    """Patterns of its control paths, which no caller reaches. They begin with `*`: engines take a
    prefix off a path (`--root-path`, `--fastapi-root-path`)."""
    needs: tuple[NeededFlag, ...]
    """Flags of its command."""
    programs: frozenset[str]
    """Names of its programs, of its images, and parts of the names of its modules."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that it needs."""


_MEMORY: Final = json.dumps({"tags": ["kv_cache", "weights"]})
_PROFILE: Final = ("*/start_profile", "*/stop_profile")
_ADAPTERS: Final = ("*/load_lora_adapter*", "*/unload_lora_adapter")

ENGINES: Final[dict[str, EnginePreset]] = {
    # Sources: vLLM's docs/features/sleep_mode.md and vllm/entrypoints/serve/dev/. Level 1 keeps the
    # weights in host memory; level 2 loads them again, and came back with gibberish
    # (vllm-project/vllm#29341).
    "vllm": EnginePreset(
        sleep=EngineCall("/sleep?level=1"),
        wake=EngineCall("/wake_up"),
        check=EngineCall("/is_sleeping", "GET"),
        control=(
            "*/sleep",
            "*/wake_up",
            "*/is_sleeping",
            "*/collective_rpc",
            "*/reset_*_cache",
            "*/server_info",
            "*/pause",
            "*/resume",
            "*/is_paused",
            "*/abort_requests",
            "*/*_weight_transfer_engine",
            "*/start_*weight_update",
            "*/finish_weight_update",
            "*/update_weight*",
            "*/weight_info",
            "*/weight_checker",
            "*/get_world_size",
            "*/scale_elastic_ep",
            "*/is_scaling_elastic_ep",
            *_PROFILE,
            *_ADAPTERS,
        ),
        needs=(
            NeededFlag("--enable-sleep-mode", "without it /sleep answers 200 and frees nothing"),
        ),
        programs=frozenset({"vllm", "vllm-openai", "vllm.entrypoints"}),
        env={"VLLM_SERVER_DEV_MODE": "1"},
    ),
    # Source: SGLang's python/sglang/srt/entrypoints/http_server.py. It asserts that nothing runs.
    "sglang": EnginePreset(
        sleep=EngineCall("/release_memory_occupation", body=_MEMORY),
        wake=EngineCall("/resume_memory_occupation", body=_MEMORY),
        check=None,
        control=(
            "*/release_memory_occupation",
            "*/resume_memory_occupation",
            "*/flush_cache",
            "*/clear_hicache_storage_backend",
            "*/hicache/*",
            "*/*weights*group*",
            "*/update_weight*",
            "*/*weights_to_remote_instance",
            "*/get_weights_by_name",
            "*/get_remote_instance_transfer_engine_info",
            "*/weights_checker",
            "*/abort_request",
            "*/pause_generation",
            "*/continue_generation",
            "*/*_session",
            "*/*_expert_distribution_record",
            "*/set_internal_state",
            "*/get_internal_state",
            "*/server_info",
            "*/get_server_info",
            "*/configure_logging",
            "*/slow_down",
            "*/freeze_gc",
            *_PROFILE,
            *_ADAPTERS,
        ),
        needs=(
            NeededFlag("--enable-memory-saver", "without it nothing is freed"),
            NeededFlag("--enable-weights-cpu-backup", "without it the weights do not come back"),
        ),
        programs=frozenset({"sglang", "sglang.launch_server"}),
    ),
}


@dataclass(frozen=True, slots=True)
class ParkSettings:
    """The table [park]: how replicas sleep instead of being stopped."""

    engine: EngineName
    """The preset, "" for calls of one's own."""
    sleep: EngineCall
    """Puts the engine to sleep."""
    wake: EngineCall
    """Wakes it."""
    check: EngineCall | None = None
    """Says whether it sleeps."""
    park_s: float = PARK_S
    """Longest park in seconds."""

    @property
    def control(self) -> tuple[str, ...]:
        """Patterns of the paths that no caller reaches."""
        if self.engine:
            return ENGINES[self.engine].control
        calls = filter(None, (self.sleep, self.wake, self.check))
        return tuple(dict.fromkeys(control_rule(one.path) for one in calls))


@dataclass(frozen=True, slots=True)
class ParkProfile:
    """What a trial's park has shown."""

    works: bool
    """Whether the engine came back right, and its memory was freed."""
    reason: str = ""
    """Why it does not work, "" if it does."""
    sleep_s: float = 0.0
    """Seconds of the call that puts it to sleep, with its checks."""
    wake_s: float = 0.0
    """Seconds of the call that wakes it, with its checks."""
    verify_s: float = 0.0
    """Seconds of the golden samples after the wake."""
    host_mib: float = 0.0
    """MiB of host memory that the sleep takes at most, also for a moment."""
    residue_mib: float = 0.0
    """MiB that it holds of a GPU while it sleeps, the most of any."""


def control_rule(path: str) -> str:
    """Return the pattern of a call's path, whatever is before it."""
    return "*" + path.partition("?")[0]


def engine_of(command: tuple[str, ...], image: str) -> str:
    """Return the engine whose name is among the words of a command or is an image's, "" for none
    that is known."""
    words = (*command, image)
    names = {PurePosixPath(word.partition("@")[0]).name.partition(":")[0] for word in words}
    for name, engine in ENGINES.items():
        modules = [one for one in engine.programs if "." in one]
        if engine.programs & names or any(one in word for word in words for one in modules):
            return name
    return ""


def lacking(engine: str, command: tuple[str, ...]) -> tuple[NeededFlag, ...]:
    """Return the flags of an engine that a command does not have. A word may be a line of a shell,
    and flags may be written with `_`."""
    given = {part.replace("_", "-") for word in command for part in word.split()}
    return tuple(need for need in ENGINES[engine].needs if need.flag not in given)
