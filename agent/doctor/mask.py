"""Removes secrets from text that the operator passes on. Pure."""

import json
import re
from collections.abc import Iterable

MASK = "***"
SECRET_CHARS_MIN = 4
_NAMED = re.compile(
    r"""(?ix) ( \b [\w.-]* (?: password | passwd | secret | token | api_?key ) [\w.-]* ["']? \s* [:=] \s* )
        (?: "[^"]*" | '[^']*' | [^\s,;"'{}\[\]]+ )"""
)
_HEADER = re.compile(r"(?i)(\b(?:x-auth-token|x-subject-token|authorization)\s*:\s*)[^\r\n]+")
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of keys such as `password` or `token`.

    A secret of fewer than SECRET_CHARS_MIN characters is masked only as the value of such a key, since it may
    be a part of any word.
    """
    spellings = {
        spelling
        for secret in secrets
        if len(secret) >= SECRET_CHARS_MIN
        for spelling in (secret, json.dumps(secret)[1:-1])
    }
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, MASK)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
