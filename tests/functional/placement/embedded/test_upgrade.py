"""Files that earlier versions wrote are opened by this one; one dump per schema, kept for ever."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from kits.embedded_api import Api
from kits.paths import DATA

from agent.durable.files import take_lock
from agent.errors import StateError
from agent.placement.embedded import Core
from agent.placement.embedded.store import FILE_NAME, MIGRATIONS
from agent.placement.transfer import read_state_dir

DUMPS = DATA / "placement"
ROOT, CHILD, INSTANCE, UNTYPED, AGGREGATE = (
    f"{number:08}-0000-4000-8000-000000000000" for number in range(1, 6)
)


def test_there_is_a_dump_of_every_schema() -> None:
    dumps = {path.name for path in DUMPS.glob("schema-*.sql")}
    assert dumps == {f"schema-{number}.sql" for number in range(1, len(MIGRATIONS) + 1)}


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS)))
def test_what_is_only_read_is_not_migrated(tmp_path: Path, schema: int) -> None:
    """`plimsoll placement check` and `export`: the former version still opens the file."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript((DUMPS / f"schema-{schema}.sql").read_text(encoding="utf-8"))
    before = (tmp_path / FILE_NAME).read_bytes()
    content, evidence = read_state_dir(tmp_path)
    assert [provider.name for provider in content.providers.values()] == ["root", "child"]
    assert "CUSTOM_T" in evidence.names
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, f"{FILE_NAME}.lock"}
    descriptor = take_lock(tmp_path / f"{FILE_NAME}.lock")
    with pytest.raises(StateError, match="in use by"):
        read_state_dir(tmp_path)
    os.close(descriptor)


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS) + 1))
def test_each_schema_is_read(tmp_path: Path, schema: int) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.executescript((DUMPS / f"schema-{schema}.sql").read_text(encoding="utf-8"))
    core = Core.open(tmp_path)
    backups = [path.name for path in tmp_path.glob("placement.db.backup-*")]
    assert [name.split("-")[1] for name in backups] == ([f"{schema}"] if schema < len(MIGRATIONS) else [])
    model = core._store.model
    assert [provider.name for provider in model.providers.values()] == ["root", "child"]
    assert {consumer.updated_at for consumer in model.consumers.values()} == {1800000000.5}
    assert model.traits["CUSTOM_T"] == 1800000000.5 and model.traits["HW_NUMA_ROOT"] == 1800000000.0
    api = Api(core)
    assert api.done("GET", f"/allocations/{INSTANCE}") == {
        "allocations": {
            ROOT: {"resources": {"VCPU": 2, "CUSTOM_C": 2}, "generation": 3},
            CHILD: {"resources": {"VGPU": 1}, "generation": 4},
        },
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
    }
    assert api.done("GET", f"/allocations/{UNTYPED}")["consumer_type"] == "unknown"
    assert api.done("GET", f"/resource_providers/{ROOT}/inventories")["inventories"] == {
        "VCPU": {
            "total": 8,
            "reserved": 1,
            "min_unit": 1,
            "max_unit": 2**31 - 1,
            "step_size": 1,
            "allocation_ratio": 1.5,
        },
        "CUSTOM_C": {
            "total": 4,
            "reserved": 0,
            "min_unit": 2,
            "max_unit": 4,
            "step_size": 2,
            "allocation_ratio": 1.0,
        },
    }
    assert api.done("GET", f"/resource_providers/{CHILD}/traits")["traits"] == ["CUSTOM_T", "HW_NUMA_ROOT"]
    assert api.done("GET", f"/resource_providers/{ROOT}/aggregates")["aggregates"] == [AGGREGATE]
    child = api.ask("GET", f"/resource_providers/{CHILD}")
    assert (child.body["parent_provider_uuid"], child.body["root_provider_uuid"]) == (ROOT, ROOT)
    assert child.headers["last-modified"] == "Fri, 15 Jan 2027 08:00:00 GMT"
    assert api.usage(CHILD) == {"VGPU": 2}
    core.close()
