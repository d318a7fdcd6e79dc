"""GPUs of one host: how they are connected, and which of them belong together."""
