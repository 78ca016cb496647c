"""What the pages share: their sheet, the headers by which a browser loads nothing else, and their templates.

A template escapes every name, and spells characters that a browser would not show or that turn the order of
the others (U+202E). The content security policy allows no style but the one sheet, by its hash, and no
script.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from urllib.parse import urlsplit

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from agent.errors import plain

HTML_TYPE = "text/html; charset=utf-8"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_QUOTED = re.compile("`([^`]+)`")


class Page:
    """A page of the package: the template NAME.html, and the sheet that all pages have with NAME.css."""

    def __init__(self, package: str, name: str) -> None:
        files = resources.files(package)
        sheets = [resources.files(__package__).joinpath("page.css"), files.joinpath(f"{name}.css")]
        self._style = "\n".join(each.read_text(encoding="utf-8") for each in sheets if each.is_file())
        self._file = files.joinpath(f"{name}.html")
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        self.headers: Mapping[str, str] = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": (
                f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'self'; "
                "frame-ancestors 'none'"
            ),
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }

    def render(self, **shown: object) -> str:
        """The HTML."""
        return self._template.render(style=Markup(self._style), **shown)  # noqa: S704 - our own file

    @cached_property
    def _template(self) -> Template:
        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_spelt
        )
        environment.filters |= {"commands": _commands, "breakable": _breakable}
        return environment.from_string(self._file.read_text(encoding="utf-8"))


def _spelt(value: object) -> object:
    """What an expression of the template shows; the template escapes it afterwards."""
    return value if isinstance(value, Markup) else plain(value)


def _commands(sentence: str) -> Markup:
    """The sentence with what stands between backticks as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(plain(sentence)))))  # noqa: S704 - escaped


def _breakable(name: str) -> Markup:
    """A resource class, whose name a narrow screen may break after each underscore."""
    return Markup("_<wbr>").join(plain(name).split("_"))


def is_loopback(host: str) -> bool:
    """Whether the Host header names this machine, so that no web page can have a browser read it by DNS."""
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK_NAMES
    except ValueError:
        return False
