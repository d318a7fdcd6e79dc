"""A function that attacks all it can reach: the request says how, the answer what came of it."""

import hoarding
import host
import kernel
import lies
import network
import slabs

ATTACKS = {
    **{**network.ATTACKS, **host.ATTACKS, **hoarding.ATTACKS},
    **{**kernel.ATTACKS, **lies.ATTACKS, **slabs.ATTACKS},
}


def predict(inputs, ctx):
    """`{"order": {"attack": NAME, ...}}` does that; without a name it only answers."""
    order = inputs["order"]
    name = order.get("attack")
    return {"said": ATTACKS[name](order) if name else "nothing"}
