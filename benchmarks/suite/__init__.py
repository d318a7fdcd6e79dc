"""The benchmarks by name, in the order in which `make bench` runs them.

Each is a module whose docstring is its headline, with `measure(setting)`, which returns the parts
of its report and raises LeftOut if it cannot run.
"""

NAMES = (
    "startup",
    "rows",
    "wakeup",
    "replica",
    "plain",
    "bench",
    "batching",
    "bodies",
    "servers",
    "chat",
    "oip",
    "waiting",
    "burst",
    "limit",
    "workers",
    "observing",
    "progressive",
    "precision",
    "idle",
    "containers",
    "hosts",
    "remote",
    "many",
    "simulation",
)
