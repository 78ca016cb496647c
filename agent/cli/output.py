"""Where a command's answer goes: a table for people, JSON or YAML for programs."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from agent.cli.terminal import Style, plain, style_of
from agent.errors import PlimsollError

FORMATS = ("table", "json", "yaml")


class Output:
    """Writes to standard output in the format that was asked for."""

    def __init__(self, form: str) -> None:
        self._form = form

    def show(self, data: Any, lines: Callable[[Style], Iterable[str]]) -> None:
        """`data` is JSON-ready; `lines` draws the same for people."""
        if self._form == "json":
            print(json.dumps(data, indent=2))
        elif self._form == "yaml":
            # Late: most calls do without, and it costs as much as all the rest.
            import yaml

            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            print(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=False), end="")
        else:
            for line in lines(style_of(sys.stdout)):
                print(line)


def show_error(error: PlimsollError, form: str) -> None:
    """One line on standard error; JSON where programs were to read the answer."""
    if form == "table":
        print(f"plimsoll: {plain(error.message)}", file=sys.stderr)
        return
    told = {"code": error.code, "message": error.message, "details": dict(error.details)}
    print(json.dumps({"error": told}, default=str), file=sys.stderr)
