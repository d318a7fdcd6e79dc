"""OCI runtime of a stand-in host: runc, with changes of containers that are being created.

`python runtime.py CHANGES ARGUMENT...`. CHANGES is a JSON file: `environment`, `mounts` (source to
target, read-only) and `folders` (writable) of all containers, and in its member `gpu` of those with
a GPU, which have NVIDIA's hook in config.json. Limits above this process's are lowered to them: on
a machine whose root may not raise limits, runc refuses them.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

HOOK = "nvidia"


def apply(config: dict[str, Any], change: dict[str, Any]) -> None:
    """Add variables and mounts to a container's configuration."""
    variables = [f"{name}={value}" for name, value in change.get("environment", {}).items()]
    config["process"].setdefault("env", []).extend(variables)
    for kind, right in (("mounts", "ro"), ("folders", "rw")):
        for source, target in change.get(kind, {}).items():
            options = ["rbind", right, "rprivate"]
            config["mounts"].append(
                {"source": source, "destination": target, "type": "bind", "options": options}
            )


def lower_limits(config: dict[str, Any]) -> None:
    """Lower the limits of a container's process to those of this process."""
    for limit in config["process"].get("rlimits", []):
        _, most = resource.getrlimit(getattr(resource, limit["type"]))
        if most != resource.RLIM_INFINITY:
            limit["soft"], limit["hard"] = min(limit["soft"], most), min(limit["hard"], most)


def has_gpu(config: dict[str, Any]) -> bool:
    """Return whether the container was given a GPU."""
    hooks = config.get("hooks", {}).get("prestart", [])
    return any(HOOK in hook["path"] for hook in hooks)


def main() -> None:
    """Change the configuration, if a container is created, and become runc."""
    changes, *arguments = sys.argv[1:]
    if "create" in arguments and "--bundle" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        config, change = json.loads(path.read_text()), json.loads(Path(changes).read_text())
        apply(config, change)
        lower_limits(config)
        if has_gpu(config):
            apply(config, change.get("gpu", {}))
        path.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *arguments])


if __name__ == "__main__":
    main()
