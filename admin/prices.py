"""Prices of devices and energy. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PRICES_MAX: Final = 64
PRICE_MAX: Final = 1e6
MIG: Final = " MIG "
"""Ends the GPU's own name in the name of a slice, such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
_PRICE: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in `currency`: per hour of a device, and per kWh, 0 for none.

    `by_name` has prices by the name of a GPU's model, or by kind of device, in lower case. All
    other devices have the price `default`, None for no price.
    """

    currency: str = ""
    kwh: float = 0.0
    default: float | None = None
    by_name: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything has a price."""
        return bool(self.kwh or self.by_name) or self.default is not None

    def device_hour(self, kind: str, model: str, part: float) -> float | None:
        """Return the price of an hour of a device, None if it has none.

        The price by the full name counts before that of the kind. A slice without a price of its
        own has its part of its GPU's.
        """
        whole = model.partition(MIG)[0]
        own = self.by_name.get(model.lower())
        if own is not None and model != whole:
            return own
        for name in (whole.lower(), kind):
            if name in self.by_name:
                return self.by_name[name] * part
        return None if self.default is None else self.default * part


def parse_prices(text: str) -> tuple[float | None, dict[str, float]]:
    """Return the default price and the prices by name of FN_PRICE_DEVICE_HOUR. Raises ValueError
    that says what is expected."""
    default: float | None = None
    by_name: dict[str, float] = {}
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    if len(items) > PRICES_MAX:
        raise ValueError(f"expected at most {PRICES_MAX} prices")
    for item in items:
        name, equals, price = (part.strip() for part in item.rpartition("="))
        if not _PRICE.fullmatch(price) or (equals and not name) or float(price) > PRICE_MAX:
            raise ValueError(
                "expected prices per hour of 0 or more, one for all devices or by kind or name of"
                f" a GPU, such as 2.50 or cpu=0.04,cuda=2.50,NVIDIA H200=3.9; got {item[:60]!r}"
            )
        if not name and by_name:
            # "cuda=2,50" must not be a price of 2, and one of 50 for all others.
            raise ValueError(
                f"expected the price for all devices first, got {item!r} after another"
            )
        if name.lower() in by_name or (not name and default is not None):
            raise ValueError(
                f"expected each price once; {name or 'the one for all devices'!r} has two"
            )
        if name:
            by_name[name.lower()] = float(price)
        else:
            default = float(price)
    return default, by_name
