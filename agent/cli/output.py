"""The output of a command: lines for people, JSON or YAML for programs."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from agent.cli.terminal import Style, plain, style_of
from agent.errors import PlimsollError

FORMATS = ("table", "json", "yaml")


class Output:
    """Writes answers to standard output, in the form of the option --output."""

    def __init__(self, form: str) -> None:
        self._form = form

    def show(self, data: Any, lines: Callable[[Style], Iterable[str]]) -> None:
        """Print an answer. `data` is JSON-ready; `lines` returns the same for people."""
        if self._form == "json":
            print(json.dumps(data, indent=2))
        elif self._form == "yaml":
            # Imported late: it takes as long as all the rest of a command.
            import yaml

            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            print(yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=False), end="")
        else:
            for line in lines(style_of(sys.stdout)):
                print(line)


def show_error(error: PlimsollError, form: str) -> None:
    """Print an error to standard error: one line for people, JSON for programs."""
    if form == "table":
        print(f"plimsoll: {plain(error.message)}", file=sys.stderr)
        return
    body = {"code": error.code, "message": error.message, "details": dict(error.details)}
    print(json.dumps({"error": body}, default=str), file=sys.stderr)
