"""A virtual world around the decision cores: processes, devices, callers and a clock that jumps."""
