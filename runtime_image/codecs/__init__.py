"""Request bodies into named inputs, outputs into answer bodies.

`request`, `accept`, the forms (`oip`, `raw`) and `tensors` need no numpy: the gateway checks cold
requests with them. `arrays`, `media` and `answer` do the numbers and are imported by replicas only.
What the first half accepts the second half can decode; only the content of pictures and sound is
left to it.
"""
