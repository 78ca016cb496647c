"""Secrets taken out of text that is handed on. Pure."""

import json
import re
from collections.abc import Iterable

MASK = "***"
LEAST_CHARS = 4
_NAMED = re.compile(
    r"""(?ix) ( \b [\w.-]* (?: password | passwd | secret | token | api_?key ) [\w.-]* ["']? \s* [:=] \s* )
        (?: "[^"]*" | '[^']*' | [^\s,;"'{}\[\]]+ )"""
)
_HEADER = re.compile(r"(?i)(\b(?:x-auth-token|x-subject-token|authorization)\s*:\s*)[^\r\n]+")
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, wherever they stand, and without what is called one.

    Secrets of fewer than LEAST_CHARS characters are masked only where they are named: they would be found
    in the middle of everything.
    """
    spelt = {form for each in secrets if len(each) >= LEAST_CHARS for form in (each, json.dumps(each)[1:-1])}
    for secret in sorted(spelt, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
