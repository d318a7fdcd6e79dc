"""Events of functions, replicas, devices and operations, for followers of the server."""
