"""References measured in the same run as fngate: the engine alone, and other servers."""
