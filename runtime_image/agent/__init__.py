"""The agent of a host: reports its GPUs, memory, disk and clocks. Standard library and pynvml."""
