"""Logging by the standard library: each record is one line, a sentence and its fields.

LOG = log.get(__name__)
LOG.info("The pass changed 3 providers.", fields={"operations": 7, "duration_ms": 41.2})
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

from agent.clock import exact_moment
from agent.errors import plain

MASK = "***"
_ORDINARY = re.compile(r"[A-Za-z]{1,15}|[0-9]{1,8}|.{1,3}", re.DOTALL)
_BEFORE_VALUE = (
    r"""((?i:password|passwd|secret|token|credential|api_?key)[\w.-]*["']?\s*[:=]\s*["']?|://[^/\s:@]*:)"""
)
PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""{level: syslog priority}; a line for the journal begins with it as <N> (sd-daemon(3))."""
_BARE = re.compile(r'[^\s"=\x00-\x1f\x7f]+')


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls accept `fields`, and which adds its own to each record."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the fields into the record (logging.LoggerAdapter)."""
        fields = {**(self.extra or {}), **kwargs.pop("fields", {})}
        kwargs["extra"] = {**kwargs.get("extra", {}), "fields": fields}
        return msg, kwargs


def get(name: str, **fields: Any) -> Logger:
    """The logger of this name, with these fields in each record."""
    return Logger(logging.getLogger(name), fields)


class Formatter(logging.Formatter):
    """Renders records as `style`: journal, logfmt or json. Each of `secrets` is masked."""

    def __init__(self, style: str, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._form = style
        self._secrets = frozenset(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        message, fields = self.masked(record)
        if self._form == "journal":
            return f"<{PRIORITIES.get(record.levelname, 6)}>{' '.join((plain(message), *_pairs(fields)))}"
        head = {
            "time": exact_moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": message,
        }
        return _dumps({**fields, **head}) if self._form == "json" else " ".join(_pairs({**head, **fields}))

    def masked(self, record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
        """The record's message and fields, without secrets."""
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return self._mask(record.getMessage()), {name: self._mask(value) for name, value in fields.items()}

    def _mask(self, value: Any) -> Any:
        if isinstance(value, bool | int | float) or value is None:
            return value
        return MASK if value in self._secrets else mask_secrets(str(value), self._secrets)


def is_ordinary(secret: str) -> bool:
    """Whether a secret may as well be a word or a number of an ordinary sentence, such as `admin`."""
    return _ORDINARY.fullmatch(secret) is not None


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets. One that is an ordinary word is masked only where a value stands.

    Else a token `admin` would make the sentences about the role admin unreadable.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if not is_ordinary(secret):
            text = text.replace(secret, MASK)
        elif secret in text:
            text = re.sub(rf"{_BEFORE_VALUE}{re.escape(secret)}(?![A-Za-z0-9])", rf"\1{MASK}", text)
    return text


def _pairs(fields: Mapping[str, Any]) -> Iterable[str]:
    for name, value in fields.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"{name}={text if text.isprintable() and _BARE.fullmatch(text) else _dumps(text)}"


def _dumps(value: object) -> str:
    """The value as JSON, whose strings have escapes for what a terminal would not show as it is."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
