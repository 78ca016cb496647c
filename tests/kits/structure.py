"""Measures the structure of the packages `agent` and `drivers` from their source; `./dev house` prints it.

The layers are those of the import-linter contract in pyproject.toml. A folder is the first below a package
(`agent.claims`, `drivers.libvirt`); the modules directly in `agent/` are its ground, below all folders.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kits.paths import CHECKOUT, TESTS

PACKAGES = ("agent", "drivers")
GROUND = "agent (ground)"
NO_ACTOR = re.compile(r"\b(somebody|nobody|whoever|whatever|whichever)\b")
VERB_FORM = re.compile(r"[a-z]+(ing|ed)|seen|used|given|gone|held|left")
NOUNS = {"carving", "finding", "ping"}


@dataclass(frozen=True, slots=True)
class Module:
    """A Python module of the product: its dotted name, file, syntax tree, and the modules that it imports."""

    name: str
    file: Path
    tree: ast.Module
    imports: frozenset[str]

    @property
    def folder(self) -> str:
        """`agent.claims` for agent.claims.fit; GROUND for a module directly in agent/."""
        return folder_of(self.name)


@dataclass(frozen=True, slots=True)
class Documentation:
    """Public modules, classes, functions and methods: how many there are, and which have no docstring."""

    total: int
    missing: tuple[str, ...]

    @property
    def percent(self) -> float:
        """The share with a docstring, 0 to 100."""
        return 100 * (self.total - len(self.missing)) / self.total


def folder_of(module: str) -> str:
    """The folder of a dotted module name."""
    parts = module.split(".")[:2]
    return ".".join(parts) if len(parts) == 2 and CHECKOUT.joinpath(*parts).is_dir() else GROUND


@cache
def modules() -> dict[str, Module]:
    """{dotted name: module} of both packages."""
    trees = {
        _dotted(file): (file, ast.parse(file.read_text(encoding="utf-8")))
        for package in PACKAGES
        for file in sorted((CHECKOUT / package).rglob("*.py"))
    }
    return {
        name: Module(name, file, tree, frozenset(_imports(tree, trees.keys())) - {name})
        for name, (file, tree) in trees.items()
    }


def layers() -> list[list[str]]:
    """The layers of the contract, the highest first; each is a list of folders. The ground is the last."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c["type"] == "layers" and "agent.cli" in c["layers"])
    return [[folder.strip() for folder in layer.split("|")] for layer in contract["layers"]] + [[GROUND]]


def upward_imports() -> list[str]:
    """Imports from a folder into one that is not below it, as "importer -> imported"."""
    rank = {folder: number for number, layer in enumerate(reversed(layers())) for folder in layer}
    return [
        f"{module.name} -> {imported}"
        for module in modules().values()
        if module.folder in rank
        for imported in sorted(module.imports)
        if folder_of(imported) in rank
        and folder_of(imported) != module.folder
        and rank[folder_of(imported)] >= rank[module.folder]
    ]


def mutual_folders() -> list[tuple[str, str]]:
    """Pairs of folders that import each other."""
    arrows = {
        (module.folder, folder_of(imported)) for module in modules().values() for imported in module.imports
    }
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def circles() -> list[list[str]]:
    """Groups of modules that import each other in a circle (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for imported in modules()[name].imports:
            if imported not in index:
                visit(imported)
                low[name] = min(low[name], low[imported])
            elif imported in stack:
                low[name] = min(low[name], index[imported])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in modules():
        if name not in index:
            visit(name)
    return found


def function_lengths() -> list[int]:
    """Lines of each function and method, ascending."""
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
    )


def documentation() -> Documentation:
    """What is public and what of it has no docstring; overrides of a documented base need none."""
    public = [entry for module in modules().values() for entry in _public(module)]
    return Documentation(len(public), tuple(name for name, documented in public if not documented))


def untested_modules() -> list[str]:
    """Modules that no test file imports or names by their path."""
    files = [file.read_text(encoding="utf-8") for file in sorted(TESTS.rglob("*.py"))]
    text = "\n".join(files)
    known = frozenset(modules())
    imported = {name for file in files for name in _imports(ast.parse(file), known)}
    test_paths = {file.relative_to(TESTS).with_suffix("").as_posix() for file in TESTS.rglob("test_*.py")}
    return [
        module.name
        for module in modules().values()
        if module.name not in imported
        and module.name not in text
        and module.file.name != "__init__.py"
        and not any(path.endswith(f"/test_{module.name.rpartition('.')[2]}") for path in test_paths)
    ]


def size_measures() -> list[tuple[str, str, str]]:
    """(what is measured, its value, its goal), as `./dev house` prints them.

    Lines of code are those that are neither blank nor comment nor docstring.
    """
    code = {module.name: _code_lines(module) for module in modules().values()}
    code_lines = sum(len(lines) for lines in code.values())
    imports = sum(len(lines & _import_lines(modules()[name])) for name, lines in code.items())
    lengths = function_lengths()
    private, called_once = _private_functions()
    routes = json.loads((CHECKOUT / "agent/api/openapi.json").read_text(encoding="utf-8"))["paths"].values()
    api = sum(len(lines) for name, lines in code.items() if name.startswith("agent.api"))
    texts = {file: file.read_text(encoding="utf-8") for file in TESTS.rglob("*.py")}
    sources = {module.file: module.file.read_text(encoding="utf-8") for module in modules().values()}
    stems = [module.file.stem for module in modules().values()]
    verb_forms = sum(bool(VERB_FORM.fullmatch(stem)) and stem not in NOUNS for stem in stems)
    return [
        ("modules in agent/ and drivers/", f"{len(modules())}", "<= 230"),
        ("lines", f"{sum(text.count(chr(10)) for text in sources.values())}", "<= 57000"),
        ("lines of code", f"{code_lines}", "<= 40000"),
        ("mean length of a function", f"{sum(lengths) / len(lengths):.1f}", ">= 12"),
        ("95th percentile of them", f"{lengths[len(lengths) * 95 // 100]}", "<= 40"),
        ("longest function", f"{lengths[-1]}", "<= 80"),
        ("imports, share of the lines of code", f"{imports / code_lines:.1%}", "<= 6.5%"),
        ("modules with one importer, in their own folder", f"{_used_by_a_neighbour()}", "<= 20"),
        (f"private functions with one caller, of {private}", f"{called_once}", "<= 500"),
        ("lines of code of agent/api for each route", f"{api / sum(map(len, routes)):.0f}", "<= 45"),
        ("lines of tests/", f"{sum(text.count(chr(10)) for text in texts.values())}", "<= 60000"),
        ("public names that are documented", f"{documentation().percent:.1f}%", "100%"),
        ("file names that are a verb's form", f"{verb_forms}", "0"),
        ("words without an actor", f"{sum(len(NO_ACTOR.findall(text)) for text in sources.values())}", "0"),
    ]


def _code_lines(module: Module) -> set[int]:
    lines: set[int] = set()
    silent = {*(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)}
    for token in tokenize.generate_tokens(io.StringIO(module.file.read_text(encoding="utf-8")).readline):
        if token.type not in silent and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            lines -= _lines_of(node.body[0])
    return lines


def _import_lines(module: Module) -> set[int]:
    statements = [node for node in ast.walk(module.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {line for statement in statements for line in _lines_of(statement)}


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _used_by_a_neighbour() -> int:
    importers: dict[str, list[Module]] = {name: [] for name in modules()}
    for module in modules().values():
        for imported in module.imports:
            importers[imported].append(module)
    return sum(
        len(found) == 1 and found[0].file.parent == modules()[name].file.parent
        for name, found in importers.items()
    )


def _private_functions() -> tuple[int, int]:
    """(how many, how many of them are named once besides their definition)."""
    total = once = 0
    for module in modules().values():
        names = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        private = [
            node.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
        ]
        total += len(private)
        once += sum(names[name] <= 1 for name in private)
    return total, once


def _dotted(file: Path) -> str:
    return ".".join(file.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")


def _imports(tree: ast.AST, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def _public(module: Module) -> Iterator[tuple[str, bool]]:
    if module.tree.body:
        yield module.name, ast.get_docstring(module.tree) is not None
    yield from _public_in(module.tree, module.name)


def _public_in(parent: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, bool]]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        decorators = {item.id for item in node.decorator_list if isinstance(item, ast.Name)}
        if not decorators & {"override", "overload"}:
            yield f"{name}.{node.name}", ast.get_docstring(node) is not None
        if isinstance(node, ast.ClassDef):
            yield from _public_in(node, f"{name}.{node.name}")


def main() -> None:
    """Print the measures, and what is wrong with them."""
    per_folder = Counter(module.folder for module in modules().values() if module.tree.body)
    order = {folder: number for number, layer in enumerate(layers()) for folder in layer}
    for folder, count in sorted(per_folder.items(), key=lambda item: (order.get(item[0], 99), item[0])):
        print(f"{count:5}  {folder}")
    measures = {
        "imports that run upwards": upward_imports(),
        "pairs of folders that import each other": mutual_folders(),
        "circles of modules": circles(),
        "modules that no test imports or names": untested_modules(),
        "public names without a docstring": documentation().missing,
    }
    print()
    for what, value, goal in size_measures():
        print(f"{value:>7}  {what} (goal: {goal})")
    print()
    for title, offenders in measures.items():
        print(f"{len(offenders):5}  {title}")
        for offender in offenders:
            print(f"         {offender}")


if __name__ == "__main__":
    main()
