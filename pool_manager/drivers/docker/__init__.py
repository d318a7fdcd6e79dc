"""Replicas as containers of the Docker engine of this host."""
