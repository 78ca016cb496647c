"""A cordon: an operator's word that a device is given to no guest. It is kept over restarts."""

from dataclasses import dataclass
from typing import Annotated

from agent.json_checks import read_uid

ADDRESS_CHARS_MAX = 64
REASON_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why and since when a device is cordoned; `at` is seconds since the epoch, UTC.

    `address` is an exact unit (a PCI address, the uuid of a mediated device) or the PCI address of a card.
    `uid` is the user who asked for it.
    """

    address: str
    reason: str
    uid: Annotated[int, read_uid]
    at: float

    @property
    def sentence(self) -> str:
        """What it is, and how it ends."""
        why = f": {self.reason}" if self.reason else ""
        return (
            f"The device {self.address} is cordoned by uid {self.uid}{why}. It is given to no guest; the "
            f"guest that has it keeps it. When it is well, run `plimsoll devices clear {self.address}`."
        )
