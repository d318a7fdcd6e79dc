"""The gateway protocol: a server, and its gateways in its own process or in several others."""
