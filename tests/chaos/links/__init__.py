"""Hostile peers at both doors of links over TLS: the server's, and a replica's own listener."""
