"""Replicas on other hosts: SSH connections of this process, their channels, and what proves them."""
