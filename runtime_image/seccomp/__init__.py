"""The filter of system calls that every replica runs under."""
