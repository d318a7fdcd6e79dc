"""Request bodies into named inputs, outputs into answer bodies.

`request`, `accept`, the forms (`oip`, `raw`) and `tensors` need no numpy: the gateway checks cold
requests with them. `arrays`, `media` and `answer` do the numbers and are imported by replicas only.
The second half can decode all that the first accepts, except the content of pictures and sound,
which it checks itself.
"""
