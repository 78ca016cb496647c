"""What import-linter's contracts cannot say of modules that nobody has listed yet."""

import ast
import tomllib

import grimp
import pytest
from kits.paths import CHECKOUT

ROOT = CHECKOUT
CONTRACT = {
    *(
        "agent.cpuset",
        "agent.driver",
        "agent.errors",
        "agent.durable.files",
        "agent.log",
        "agent.device_names",
    ),
    "agent.nova_json",
    "agent.tree",
}

EDGES = {"api", "cli", "placement"}


def contract(name: str) -> dict[str, list[str]]:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (found,) = (each for each in told if each["name"].startswith(name))
    return found


def test_drivers_import_the_contract_and_nothing_else_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # their tests are in a folder of the same name
    graph = grimp.build_graph("agent", "drivers", cache_dir=None)
    imported = {
        target
        for module in graph.modules
        if module.startswith("drivers")
        for target in graph.find_modules_directly_imported_by(module)
        if target.startswith("agent")
    }
    assert imported <= CONTRACT


def test_whatever_calls_itself_pure_is_held_to_it() -> None:
    listed = set(contract("Pure modules")["source_modules"])
    pure = set()
    for path in sorted((ROOT / "agent").rglob("*.py")):
        if path.relative_to(ROOT).parts[1] in EDGES:
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if "Pure." in docstring.partition("\n\n")[0]:
            pure.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert pure <= listed, f"list in pyproject.toml: {sorted(pure - listed)}"
