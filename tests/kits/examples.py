"""How often a property is tried: a third of what `./dev test-long` does, so that `./dev test` stays short."""

import os

from kits.placements import REMOTE_TOO

THOROUGH = bool(os.environ.get("PLIMSOLL_TEST_LONG"))
EVERYWHERE = THOROUGH or os.environ.get("PLIMSOLL_KILLS") == "all" or bool(os.environ.get(REMOTE_TOO))
STRIDE = 1 if EVERYWHERE else 3


def boundaries(maximum: int, case: int) -> range:
    """The boundaries, from 1 on, at which a test interrupts its case of that number.

    `./dev test-long` and `./dev test-remote` take every one, `./dev test` every third: another third for the
    next case.
    """
    return range(1 + case % STRIDE, maximum, STRIDE)


def examples(number: int) -> int:
    """How often to try a property that `./dev test-long` tries `number` times; at least once."""
    return number if THOROUGH else max(1, number // 3)
