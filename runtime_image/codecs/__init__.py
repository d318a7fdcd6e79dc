"""Conversion of request bodies to named inputs, and of outputs to answer bodies.

`request`, `accept`, the forms (`oip`, `raw`, `multipart`) and `tensors` need no numpy: the gateway
checks cold requests with them. Nor do `plain_json` and `pictures`, for functions without arrays.
`arrays`, `media`, `sounds` and `answer` convert the numbers; only replicas import them. They decode
every request that the first group accepts, unless the content of a picture or a sound is invalid:
only `media` and `sounds` check that.
"""
