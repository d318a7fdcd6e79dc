"""Report of an attempt: its result, or the error that refused it."""

import errno
import threading


def tried(attempt):
    """Return `{"got": text}`, or `{"refused": name}` with the error's name."""
    try:
        return {"got": str(attempt())[:2000]}
    except OSError as error:
        return {"refused": errno.errorcode.get(error.errno, type(error).__name__)}
    except Exception as error:  # noqa: BLE001 - libraries raise anything
        return {"refused": type(error).__name__}


def all_tried(attempts):
    """Run all attempts; return the report of each by name."""
    return {name: tried(attempt) for name, attempt in attempts.items()}


def waited(seconds):
    """Wait as a hanging handler does."""
    threading.Event().wait(seconds)
