"""Several gateway processes on one port: what they and their supervisor share."""
