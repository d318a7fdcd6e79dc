"""Connections between gateway, manager and replica: frames, handshake, shared memory."""
