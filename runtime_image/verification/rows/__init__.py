"""Static analysis of row independence; see design.md. Runs in a child process."""
