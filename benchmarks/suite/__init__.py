"""The benchmarks by name, in the order in which `make bench` runs them.

Each is a module whose docstring is its headline, with `measure(setting)`, which gives the parts of
its report; it raises LeftOut where it cannot run.
"""

NAMES = (
    "startup",
    "rows",
    "wakeup",
    "replica",
    "plain",
    "batching",
    "bodies",
    "burst",
    "limit",
    "workers",
    "observing",
    "progressive",
    "idle",
    "containers",
    "many",
    "simulation",
)
