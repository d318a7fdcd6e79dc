"""Live state of a server, built from its event stream."""
