"""Large bodies in memory that this process shares with replicas."""
