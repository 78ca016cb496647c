"""The embedded core stands alone: it imports nothing of the rest of the agent, and few libraries."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import agent.placement.embedded

HOME = Path(agent.placement.embedded.__file__).parent
GROUND = ("agent.clock", "agent.errors", "agent.placement.knapsack", "agent.placement.slot_search")
LIBRARIES = {"httptools", "jsonschema", "os_resource_classes", "os_traits", "psycopg", "werkzeug"}


def imported() -> Iterator[tuple[str, str]]:
    """(file, module) for every import."""
    for file in HOME.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            yield from ((file.name, name) for name in names)


def test_it_imports_itself_the_standard_library_and_what_it_may() -> None:
    strange = {
        (file, name)
        for file, name in imported()
        if not name.startswith(("agent.placement.embedded", "agent.durable", "agent.http", *GROUND))
        and name.partition(".")[0] not in LIBRARIES | sys.stdlib_module_names
    }
    assert strange == set()
