"""A claim writes one consumer and the generations of its providers; standard names in use stay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from kits.embedded_api import Api, new

from agent.placement.embedded import Core
from agent.placement.embedded.tables import FILE_NAME


def test_a_claim_writes_only_the_generation_of_its_provider(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path)) as core:
        api = Api(core)
        host = api.provider("host", {"VCPU": 4})
        core._store.file.run(
            lambda transaction: transaction.execute(
                "CREATE TRIGGER whole BEFORE UPDATE OF inventories ON resource_providers"
                " BEGIN SELECT RAISE(ABORT, 'the whole row was written'); END"
            )
        )
        assert api.claim(new(), {host: {"VCPU": 1}}).status == 204


def test_a_standard_name_that_the_library_lost_stays_while_in_use(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path)) as core:
        host = Api(core).provider("host", {"VCPU": 4})
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE resource_providers SET traits = '[\"HW_FORMER\"]'")
    with closing(Core.open(tmp_path)) as core:
        assert Api(core).done("GET", f"/resource_providers/{host}/traits")["traits"] == ["HW_FORMER"]
        assert Api(core).ask("GET", "/traits/HW_FORMER").status == 204
