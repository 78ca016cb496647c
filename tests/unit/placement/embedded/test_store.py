"""The journal: what is written is read again, and what cannot be read is said."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from kits.embedded_api import Api, new

from agent.durable.errors import DatabaseDamaged, DatabaseLocked, DatabaseUnwritable
from agent.placement.embedded import Core
from agent.placement.embedded.tables import FILE_NAME


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    api.done("PUT", "/traits/CUSTOM_T")
    api.done("PUT", "/resource_classes/CUSTOM_C")
    root = api.provider("root", {"VCPU": 4})
    child = api.provider("child", {"CUSTOM_C": 4}, parent=root)
    api.set_traits(child, "CUSTOM_T")
    api.claim(new(), {root: {"VCPU": 1}, child: {"CUSTOM_C": 2}})
    before, modified = api.whole(), api.ask("GET", f"/resource_providers/{root}").headers["last-modified"]
    core.close()
    core = Core.open(tmp_path)
    api = Api(core)
    assert api.whole() == before
    assert api.ask("GET", f"/resource_providers/{root}").headers["last-modified"] == modified
    core.close()


def test_one_core_per_directory(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    with pytest.raises(DatabaseLocked):
        Core.open(tmp_path)
    core.close()
    Core.open(tmp_path).close()


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE resource_providers SET inventories = '{'",
        "UPDATE resource_providers SET inventories = '{\"VCPU\": [1]}'",
        "UPDATE resource_providers SET traits = '1'",
        "UPDATE consumers SET allocations = '[]'",
        "DELETE FROM meta",
    ],
)
def test_a_row_that_cannot_be_read_is_told(tmp_path: Path, spoil: str) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    host = api.provider("host", {"VCPU": 1})
    api.claim(new(), {host: {"VCPU": 1}})
    core.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute(spoil)
    connection.close()
    with pytest.raises(DatabaseDamaged, match="a row cannot be read"):
        Core.open(tmp_path)


def test_after_close_every_write_is_answered_503(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    core.close()
    answer = core.request("POST", "/resource_providers", {"name": "host"}, microversion="1.39")
    assert answer.status == 503
    assert "is closed" in answer.body["errors"][0]["detail"]


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnwritable, match="cannot be written"):
        Core.open(tmp_path / "file" / "state")
