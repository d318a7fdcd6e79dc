"""Deploys of Triton's model repositories: reading, mapping to function.toml, deploying."""
