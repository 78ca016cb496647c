"""The Ansible collection, without Ansible: its options are those of the API, and its pages say them."""

import ast
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kits.paths import CHECKOUT

import agent

HOST = CHECKOUT / "etc/ansible_collections/plimsoll/host"
MODULES = sorted((HOST / "plugins/modules").glob("*.py"))
SCHEMAS: Mapping[str, Any] = json.loads((CHECKOUT / "agent/api/openapi.json").read_text())["components"][
    "schemas"
]
TYPES = {"integer": "int", "string": "str", "object": "dict", "array": "list", "boolean": "bool"}
ELSEWHERE = {"consumer", "process", "alternative"}
"""Fields of a request that are options of some modules alone, or for programs that run beside the agent, or
that a claim's request has."""


def values(path: Path) -> dict[str, Any]:
    """{name: value} of the names of a module, and its classes, that are literals or made of these."""
    found: dict[str, Any] = {}
    for part in ast.walk(ast.parse(path.read_text())):
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            with suppress(NameError, TypeError):
                found[part.targets[0].id] = eval(ast.unparse(part.value), {"__builtins__": {}}, found)
    return found


SHARED = values(HOST / "plugins/module_utils/agent.py")
FRAGMENTS = values(HOST / "plugins/doc_fragments/agent.py")


def test_its_version_is_that_of_the_agent() -> None:
    assert yaml.safe_load((HOST / "galaxy.yml").read_text())["version"] == agent.__version__


@pytest.mark.parametrize(
    ("options", "schemas"),
    [
        (SHARED["REQUEST"], ["ClaimByGroups", "ClaimByFlavor", "Addition"]),
        (SHARED["GROUP"], ["Group"]),
        (SHARED["FLAVOR"], ["Flavor"]),
        (SHARED["PCI"], ["PciRequest"]),
        (SHARED["TOPOLOGY"], ["Topology"]),
    ],
    ids=["request", "group", "flavor", "pci", "topology"],
)
def test_what_can_be_asked_for_is_what_the_api_takes(options: Mapping[str, Any], schemas: list[str]) -> None:
    fields = {name: form for schema in schemas for name, form in SCHEMAS[schema]["properties"].items()}
    more = {"resources"} if options is SHARED["REQUEST"] else set()
    assert {*options} == {*fields} - ELSEWHERE | more
    for name, option in options.items():
        form = fields.get(name, {"type": "object"})
        if "$ref" in form:
            form = {"type": "object"}
        kinds = [form["type"]] if isinstance(form["type"], str) else form["type"]
        assert option["type"] in {TYPES[kind] for kind in kinds if kind != "null"}, name
        assert option.get("choices") == (
            [each for each in form["enum"] if each] if "enum" in form else None
        ), name
        assert option.get("required", False) == (
            name in SCHEMAS[schemas[0]].get("required", ()) and len(schemas) == 1
        )


def of_page(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a page as those of a module have them."""
    kept = ("type", "elements", "choices", "default", "required")
    return {
        name: {key: option[key] for key in kept if key in option}
        | ({"options": of_page(option["suboptions"])} if "suboptions" in option else {})
        for name, option in options.items()
    }


def test_the_pages_have_the_options_that_modules_share() -> None:
    pages = {name: of_page(yaml.safe_load(text)["options"]) for name, text in FRAGMENTS.items()}
    request = {name: option for name, option in SHARED["REQUEST"].items() if name != "name"}
    assert pages == {"DOCUMENTATION": SHARED["COMMON"], "REQUEST": request, "DOMAIN": SHARED["DOMAIN"]}


def test_defaults_for_all_modules_reach_each_of_them() -> None:
    groups = yaml.safe_load((HOST / "meta/runtime.yml").read_text())["action_groups"]
    assert groups == {"agent": [path.stem for path in MODULES]}


def test_only_the_licence_is_ignored_of_what_ansible_test_finds() -> None:
    plugins = [*MODULES, *(HOST / "plugins/inventory").glob("*.py")]
    wanted = sorted(f"{path.relative_to(HOST)} validate-modules:missing-gplv3-license" for path in plugins)
    files = list((HOST / "tests/sanity").glob("ignore-*.txt"))
    assert len(files) == 5
    for file in files:
        assert [line.partition(" #")[0] for line in file.read_text().splitlines()] == wanted


def test_the_choices_of_a_module_are_those_of_the_api() -> None:
    pages = {path.stem: yaml.safe_load(values(path)["DOCUMENTATION"]) for path in MODULES}
    for name, option, schema in (("move", "kind", "MoveBody"), ("where", "strategy", "WhereBody")):
        choices = SCHEMAS[schema]["properties"][option]["enum"]
        assert sorted(pages[name]["options"][option]["choices"]) == sorted(choices)
    assert all(page["module"] == name for name, page in pages.items())
