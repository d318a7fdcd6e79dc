"""Client of the admin API: HTTP, event streams, SSH tunnels."""
