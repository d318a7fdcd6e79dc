"""The agent of a host: reports GPUs, memory, disk and clock to the manager."""
