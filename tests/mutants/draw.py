"""Which small changes of a module there are, as replaced text; and a seed's choice among them.

The kinds of change are drawn with equal weight, so that a room with many calls is not all dropped calls. What
only prints, documents or types the code (docstrings, annotations, sentences) is not changed.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kits.paths import CHECKOUT

ROOMS = (
    "tracker",
    "claims",
    "moves",
    "reshape",
    "providers",
    "placement",
    "reconcile",
    "gate",
    "audit",
    "carving",
    "drivers/libvirt/describe",
)
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
_LOGGERS = {"debug", "info", "warning", "error", "exception"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module (a path below the checkout) in which `before`, at this line, is replaced by `after`.

    `within` is the text of that line. `begin` and `end` are offsets into the file's bytes. `felt_at` are the
    first and the last line whose tests may notice it: its own ones, or all of the module where it runs at the
    import, once for all tests.
    """

    module: str
    line: int
    kind: str
    before: str
    after: str
    within: str
    begin: int
    end: int
    felt_at: tuple[int, int]

    def __str__(self) -> str:
        shown = " ".join(self.before.split())
        return f"{self.module}:{self.line}: {self.kind}: `{shown[:90]}` becomes `{self.after[:90]}`"

    def applied(self, source: bytes) -> bytes:
        """The module's source with this change."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def room_folder(room: str) -> Path:
    """`claims` is agent/claims; a path is itself."""
    return CHECKOUT / (room if "/" in room else f"agent/{room}")


def mutants_of(file: Path) -> list[Mutant]:
    """All changes of a module."""
    source = file.read_bytes()
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    bodies = [
        range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    found = []
    for node, kind, after in _changes(tree):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = source[begin:end].decode()
        own = (node.lineno, node.end_lineno or node.lineno)
        felt_at = own if any(node.lineno in body for body in bodies) else (1, len(starts))
        within = source.splitlines()[node.lineno - 1].decode().strip()
        place = (within, begin, end, felt_at)
        module = str(file.relative_to(CHECKOUT))
        mutant = Mutant(module, node.lineno, kind, before, after.replace("…", before), *place)
        if _compiles(mutant.applied(source)):
            found.append(mutant)
    return found


def draw_mutants(room: str, seed: int, count: int) -> list[Mutant]:
    """`count` different changes of a room's modules, or all where there are fewer."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for file in sorted(room_folder(room).rglob("*.py")):
        for mutant in mutants_of(file):
            by_kind[mutant.kind].append(mutant)
    dice = random.Random(f"{room} {seed}")  # str: the same on each machine
    drawn: list[Mutant] = []
    while by_kind and len(drawn) < count:
        kind = dice.choice(sorted(by_kind))
        drawn.append(by_kind[kind].pop(dice.randrange(len(by_kind[kind]))))
        if not by_kind[kind]:
            del by_kind[kind]
    return drawn


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """(what is replaced, kind of change, its new text, in which … stands for the old one)."""
    for node in _executed(tree):
        if isinstance(node, ast.stmt):
            yield from _changes_of_statement(node)
        elif isinstance(node, ast.expr):
            yield from _changes_of_expression(node)
        elif isinstance(node, ast.comprehension):
            yield from ((test, "condition negated", "(not (…))") for test in node.ifs)


def _changes_of_statement(node: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            yield test, "condition negated", "(not (…))"
            yield from (
                (branch[0], "branch dropped", "pass") for branch in (body, orelse) if len(branch) == 1
            )
        case ast.While(test=test):
            yield test, "condition negated", "(not (…))"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "returned value replaced", "None"
        case ast.Expr(value=ast.Call(func=func)) if not _logs(func):
            yield node, "call dropped", "pass"
        case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, "statement dropped", "pass"


def _changes_of_expression(node: ast.expr) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    match node:
        case ast.IfExp(test=test):
            yield test, "condition negated", "(not (…))"
        case ast.BoolOp(op=op, values=[left, *_, right]):
            kept = ast.unparse(left if isinstance(op, ast.And) else right)
            yield node, "part of a condition dropped", f"({kept})"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            changed = f"({ast.unparse(left)} {_COMPARISONS[type(op)]} {ast.unparse(right)})"
            yield node, "comparison changed", changed
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            changed = f"({ast.unparse(left)} {_OPERATORS[type(op)]} {ast.unparse(right)})"
            yield node, "operator changed", changed
        case ast.Constant(value=bool() as value):
            yield node, "constant changed", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, "constant changed", f"{value + 1}"


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the code does, and say what it does: no types, f-strings, nor decorators."""
    if isinstance(node, ast.JoinedStr) or _is_union(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _executed(child)


def _is_union(node: ast.AST) -> bool:
    """Whether it gives a union of types a name."""
    match node:
        case ast.Assign(value=ast.BinOp(op=ast.BitOr()) as value):
            parts = [
                part for part in ast.walk(value) if not isinstance(part, ast.BinOp | ast.BitOr | ast.Load)
            ]
            return all(isinstance(part, ast.Name) and not part.id.isupper() for part in parts)
    return False


def _logs(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in _LOGGERS


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
