"""Proxying of HTTP/1.1 between clients and the servers of functions."""
