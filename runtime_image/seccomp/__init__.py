"""System call filter (seccomp) that applies to every replica."""
