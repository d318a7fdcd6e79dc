"""The sidecar: starts an HTTP server, probes it, and hands connected sockets to gateways."""
