"""Program that writes a log line with an exception, as JSON, to standard error.

A separate process, because setting up the log changes the whole process.
"""

import structlog

from admin.telemetry.logs import set_up

if __name__ == "__main__":
    set_up("json")
    try:
        raise ValueError
    except ValueError:
        structlog.get_logger().exception("event")
