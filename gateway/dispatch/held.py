"""The bytes that one gateway process holds, and their limit. Pure."""

from __future__ import annotations


class HeldBytes:
    """Count of bytes of bodies that are arriving, queued or in flight, and of answers that clients
    have not taken. Its owners add and subtract what they hold."""

    __slots__ = ("bytes", "most", "unsent")

    def __init__(self, most: int) -> None:
        """`most`: the limit. Bytes of answers may exceed it, as no answer is refused."""
        self.most = most
        self.bytes = 0
        self.unsent = 0
        """Of answers that clients have not taken."""

    @property
    def over_text(self) -> str:
        """Text of the error where there is no room for more."""
        return (
            "the requests held, and the answers that their clients have not taken, have"
            f" {self.bytes} bytes, at most {self.most} are allowed"
        )

    def hold_answers(self, count: int) -> None:
        """Add bytes of unsent answers; a negative count subtracts."""
        self.unsent += count
        self.bytes += count
