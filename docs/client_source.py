"""What is generated of the package `plimsoll`: its values, from the OpenAPI document, and `agent.py`.

`./dev generate` writes them; a test compares them.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent / "plimsoll"
WIDTH = 106
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
HEAD = '''"""The values of the agent's API, one a schema of its OpenAPI document, by `./dev generate`.

A field of an answer that these classes do not have is ignored. In what is sent, a field that is None is left
out where it has a default. A text may have values that a newer agent has and this document does not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll.values import Held
'''
HELD = ("Claim", "Domain")
"""What a call that claims answers, which is a context."""


def files(document: Mapping[str, Any]) -> dict[Path, str]:
    """{file: content} of what is generated; `document` is the OpenAPI document."""
    return {PACKAGE / "shapes.py": shapes_text(document), PACKAGE / "agent.py": twin_text()}


def shapes_text(document: Mapping[str, Any]) -> str:
    """`plimsoll/shapes.py`."""
    schemas = document["components"]["schemas"]
    classes = {name: schema for name, schema in schemas.items() if "properties" in schema}
    parts = [HEAD, *("".join(_class(name, schema)) for name, schema in classes.items())]
    aliases = (
        f'{name} = {_type(schema)}\n"""{schema["description"]}"""\n'
        for name, schema in schemas.items()
        if name not in classes and "description" in schema
    )
    return "\n\n".join(parts) + "\n\n" + "".join(aliases)


def _class(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    base = "(Held)" if name in HELD else ""
    yield f"@dataclass(frozen=True, slots=True, kw_only=True)\nclass {name}{base}:\n"
    yield _docstring(schema["description"])
    for number, (key, form) in enumerate(schema["properties"].items()):
        field = f"{key}_" if iskeyword(key) else key
        kind = _type(form)
        if key not in schema["required"]:
            kind = f"{kind.removesuffix(' | None')} | None = None"
        yield ("\n" if number == 0 else "") + f"    {field}: {kind}\n"
        if "description" in form:
            yield _docstring(form["description"])


def _docstring(text: str) -> str:
    if "\n" not in text and len(text) + 10 <= WIDTH + 4:
        return f'    """{text}"""\n'
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH) or [""]]
    return textwrap.indent('"""' + "\n".join(lines).rstrip() + '\n"""\n', "    ", lambda line: line != "\n")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "str" if name == "State" else name
    if "oneOf" in schema:
        return " | ".join(dict.fromkeys(_type(choice) for choice in schema["oneOf"]))
    kind = schema.get("type")
    scalars = SCALARS | ({"string": "datetime"} if schema.get("format") == "date-time" else {})
    if isinstance(kind, list):
        return " | ".join(scalars[each] for each in kind)
    if kind == "array":
        return f"tuple[{_type(schema['items'])}, ...]"
    if kind == "object":
        return f"Mapping[str, {_type(schema.get('additionalProperties') or {})}]"
    return scalars[kind] if kind else "Any"


TWIN_HEAD = '''"""The agent of a host, for programs that wait; made from `async_agent.py` by `./dev generate`.

'''
WORDS = {
    "AsyncAgent": "Agent",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "exchange_async": "exchange",
    "sleep_async": "sleep",
    "task": "thread",
}


def twin_text() -> str:
    """`plimsoll/agent.py`: the same without `async` and `await`."""
    text = (PACKAGE / "async_agent.py").read_text("utf-8")
    _, _, text = text.partition("\n\n")
    text = re.sub(r"\b(async (?=def|with|for)|await )", "", TWIN_HEAD + text)
    text = re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), text)
    return _formatted(text)


def _formatted(text: str) -> str:
    """The text as ruff sorts its imports and breaks its lines."""
    for command in (["check", "--select=I", "--fix-only", "--quiet"], ["format"]):
        full = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(PACKAGE / "agent.py"), "-"]
        text = subprocess.run(full, input=text, capture_output=True, text=True, check=True).stdout
    return text
