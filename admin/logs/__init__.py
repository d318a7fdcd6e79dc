"""What the server writes to standard error: its own log, and the access log."""
