"""Event streams of the server (text/event-stream), read."""
