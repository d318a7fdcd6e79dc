"""The GPUs of this host, as the NVIDIA driver shows them (NVML)."""
