"""GPUs of this host, as reported by the NVIDIA driver (NVML)."""
