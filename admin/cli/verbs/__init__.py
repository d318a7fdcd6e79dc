"""Verbs of fnctl, one file per verb or family; `admin.cli.main` registers them."""
