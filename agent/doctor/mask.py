"""Removes secrets from text that the operator passes on. Pure."""

import json
import re
from collections.abc import Iterable

from agent.log import is_ordinary

MASK = "***"
_NAMED = re.compile(
    r"""(?ix) ( \b [\w.-]* (?: password | passwd | secret | token | api_?key ) [\w.-]* ["']? \s* [:=] \s* )
        (?: "[^"]*" | '[^']*' | [^\s,;"'{}\[\]]+ )"""
)
_HEADER = re.compile(r"(?i)(\b(?:x-auth-token|x-subject-token|authorization)\s*:\s*)[^\r\n]+")
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of keys such as `password` or `token`.

    A secret that is an ordinary word, or a part of one, is masked only as the value of such a key.
    """
    spellings = {
        spelling
        for secret in secrets
        if not is_ordinary(secret)
        for spelling in (secret, json.dumps(secret)[1:-1])
    }
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, MASK)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
