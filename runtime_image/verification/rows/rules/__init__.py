"""The rules, one file a family. Importing this package registers all of them."""
