"""Links over TLS: the authority of certificates, and the door at which replicas dial in."""
