"""Words beside a number: `1 provider`, `2 providers`. Pure."""


def counted(number: int, one: str, many: str = "") -> str:
    """The number with its noun, or with all words that depend on it: (2, "guest runs", "guests run").

    `many` is `one` with an s where it is not given.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"
