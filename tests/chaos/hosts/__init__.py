"""Chaos of several hosts: their replicas, agents, engines, SSH servers, links and power fail."""
