"""Pool manager: runs replicas on this host's devices and scales their pools."""
