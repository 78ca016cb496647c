"""How often a property is tried: a third of what `./dev test-long` does, so that `./dev test` stays short."""

import os

THOROUGH = bool(os.environ.get("PLIMSOLL_TEST_LONG"))


def examples(number: int) -> int:
    """How often to try a property that `./dev test-long` tries `number` times; at least once."""
    return number if THOROUGH else max(1, number // 3)
