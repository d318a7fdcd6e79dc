"""GPUs of the machine that a process runs on, by NVML. Standard library and pynvml only."""
