"""HTTP side of the gateway: routes, connections, request bodies and replies."""
