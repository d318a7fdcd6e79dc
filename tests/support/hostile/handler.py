"""Function that attacks everything in reach. The request names the attack, the answer reports its
result."""

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
    """Run the attack in `{"order": {"attack": NAME, ...}}`; without a name only answer."""
    order = inputs["order"]
    name = order.get("attack")
    return {"said": ATTACKS[name](order) if name else "nothing"}
