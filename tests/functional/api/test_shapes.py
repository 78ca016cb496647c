"""The shapes: the OpenAPI document has each of them, and their samples are what it allows."""

from pathlib import Path

import pytest
from kits.api_client import validate
from samples import INSTANCES, TREE

from agent.api import shapes
from agent.api.routes import document


@pytest.mark.parametrize(
    ("component", "sample"),
    [("Instances", INSTANCES), ("Tree", TREE)],
    ids=("instances", "tree"),
)
def test_a_sample_is_valid(component: str, sample: object) -> None:
    validate({"$ref": f"#/components/schemas/{component}"}, sample)


def test_a_shape_that_no_route_uses_does_not_exist() -> None:
    classes = {
        line.removeprefix("class ").partition("Shape(")[0]
        for file in Path(shapes.__file__).parent.glob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("class ") and "Shape(" in line
    }
    assert classes == classes & set(document()["components"]["schemas"])
