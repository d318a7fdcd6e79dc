"""The pages of docs/reference/ and the pictures of docs/images/, generated from the code.

    python -m tests.reference           lists the files that are out of date
    python -m tests.reference --write   writes them

Facts come from the extractors of `tests.surface`, words from the docstrings of the code.
"""
