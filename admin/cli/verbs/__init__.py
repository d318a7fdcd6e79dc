"""The verbs of fnctl, one file a verb or family; `admin.cli.main` lists them."""
