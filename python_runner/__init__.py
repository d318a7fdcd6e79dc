"""The HTTP server of Python functions: imports a handler and answers calls with it.

It runs under the user's own interpreter, beside the user's own packages, and imports the standard
library, msgspec, `runtime_image.contract` and `runtime_image.codecs` only.
"""
