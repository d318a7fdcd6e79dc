"""The verbs of fnctl, one per file; `admin.cli.main` lists them."""
