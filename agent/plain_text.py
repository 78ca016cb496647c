"""Text that others wrote, for terminals, logs and pages. Pure; fast commands import it without logging."""


def plain(text: object) -> str:
    """The text with unprintable characters spelt out, such as terminal escapes in the name of a guest."""
    word = str(text)
    if word.isprintable():
        return word
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)
