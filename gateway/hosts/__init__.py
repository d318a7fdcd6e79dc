"""Replicas on other hosts: SSH connections, channels, greetings."""
