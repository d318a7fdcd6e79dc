"""Docker driver: replicas as containers of this host's Docker engine."""
