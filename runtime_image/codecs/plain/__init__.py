"""The commonest form, for whole batches: short JSON of numbers, answered in short JSON.

What is not exactly that is left to the codecs for single requests, which know all forms and all
errors. What these here do read and write is the same, byte for byte, as those would.
"""
