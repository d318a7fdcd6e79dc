"""Types and routes of the admin API, as its OpenAPI document shows them. Pure: msgspec is the only
package that these modules import, directly or not. The server returns these Structs, `fnctl` reads
them, and the types of the dashboard are made of them.

A field that an answer gets later has a default, so that a newer `fnctl` reads the answers of an
older server, and results of deploys that an older release has stored. A field is never taken away
or given another type within one version of the API.

Times ending in `_s` are in seconds, points in time in Unix seconds; those ending in `_ms` are in
milliseconds.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from admin.documents import deploys as deploys
    from admin.documents import events as events
    from admin.documents import functions as functions
    from admin.documents import history as history
    from admin.documents import hosts as hosts
    from admin.documents import requests as requests
    from admin.documents import server as server


def __getattr__(name: str) -> ModuleType:
    """Import a module of this package when it is first named: a command of `fnctl` needs few of
    them, and to make a type takes as long as a short request."""
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
