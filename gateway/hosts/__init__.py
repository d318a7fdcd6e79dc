"""Replicas on other hosts: connections over SSH and TLS, channels, greetings."""
