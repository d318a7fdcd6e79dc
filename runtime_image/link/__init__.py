"""The connection between gateway, manager and replica: frames, and both of its ends."""
