"""Export and import between the embedded core and OpenStack Placement, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from differential.exchange import Answer, Request
from unit.embedded.api import Api, claim, new

from agent.placement.embedded import Core
from agent.placement.embedded.portable import Ask, export, load

pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own future


@pytest.fixture
def reference() -> Iterator[Ask]:
    from differential.reference import Reference

    service = Reference()

    def ask(method: str, path: str, body: Any = None, *, microversion: str) -> Answer:
        return service.ask(Request(method, path, body, microversion))

    yield ask


def test_everything_is_carried_over_and_back(tmp_path: Path, reference: Ask) -> None:
    first, second = Core.open(tmp_path / "first"), Core.open(tmp_path / "second")
    api = Api(first)
    api.done("PUT", "/resource_classes/CUSTOM_C")
    api.done("PUT", "/traits/CUSTOM_T")
    root = api.provider("root", {"VCPU": 8, "CUSTOM_C": 4})
    child = api.provider("child", {"VGPU": 8}, parent=root)
    api.set_traits(child, "CUSTOM_T", "HW_NUMA_ROOT")
    body = {"aggregates": [new()], "resource_provider_generation": api.generation(root)}
    api.done("PUT", f"/resource_providers/{root}/aggregates", body)
    api.claim(new(), {root: {"VCPU": 6, "CUSTOM_C": 1}, child: {"VGPU": 3}})
    untyped = claim({child: {"VGPU": 5}})
    del untyped["consumer_type"]
    api.done("PUT", f"/allocations/{new()}", untyped, mv="1.37")
    api.set_inventories(root, {"VCPU": {"total": 2}, "CUSTOM_C": {"total": 4, "reserved": 4}})
    document = export(first.request)
    load(reference, document)
    assert export(reference) == document
    load(second.request, export(reference))
    assert export(second.request) == document
    first.close()
    second.close()
