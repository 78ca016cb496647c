"""A fixed program of writes, run as a process that is killed, or whose disk fails, somewhere on the way.

python -P embedded_crash_program.py write PLACE  the whole program; each step tells its number and status
python -P embedded_crash_program.py die PLACE  the same, but kills itself after the first 503
python -P embedded_crash_program.py open PLACE  opens what is there, and closes it

The place is a state directory, or the DSN of a journal in PostgreSQL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.durable.sqlite_file import SqliteFile
from agent.placement.embedded import Core
from agent.placement.embedded.store import APPLICATION_ID, FILE_NAME, MIGRATIONS

ROOT, CHILD, OTHER = (f"{number:08}-0000-0000-0000-000000000000" for number in (1, 2, 3))
INSTANCE, MIGRATION = (f"{number:08}-1111-1111-1111-111111111111" for number in (1, 2))
MANY = [f"{number:08}-2222-2222-2222-222222222222" for number in range(1, 31)]
PADS = 132
"""So many writes come first that the writer thread has made more system calls than opening the file takes:
strace counts them by thread, and must not meet the opening thread first."""

AGGREGATE = "00000001-3333-3333-3333-333333333333"

Step = tuple[str, str, Any]


def holding(resources: dict[str, dict[str, int]], generation: int | None) -> dict[str, Any]:
    return {
        "allocations": {provider: {"resources": part} for provider, part in resources.items()},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    }


def program() -> Iterator[Step]:
    """Claim, swap, release, reshape, inventory, traits, aggregates, providers: each kind of write."""
    for number in range(PADS):
        yield "PUT", f"/traits/CUSTOM_PAD_{number}", None
    yield "POST", "/resource_providers", {"name": "root", "uuid": ROOT}
    yield "POST", "/resource_providers", {"name": "child", "uuid": CHILD, "parent_provider_uuid": ROOT}
    yield (
        "PUT",
        f"/resource_providers/{ROOT}/inventories",
        {
            "resource_provider_generation": 0,
            "inventories": {"VCPU": {"total": 64}, "VGPU": {"total": 64}},
        },
    )
    yield "PUT", "/traits/CUSTOM_A", None
    yield "PUT", "/resource_classes/CUSTOM_B", None
    yield (
        "PUT",
        f"/resource_providers/{CHILD}/traits",
        {
            "resource_provider_generation": 0,
            "traits": ["CUSTOM_A"],
        },
    )
    yield (
        "PUT",
        f"/resource_providers/{CHILD}/aggregates",
        {
            "resource_provider_generation": 1,
            "aggregates": [AGGREGATE],
        },
    )
    yield "PUT", f"/allocations/{INSTANCE}", holding({ROOT: {"VCPU": 4, "VGPU": 1}}, None)
    yield (
        "POST",
        "/allocations",
        {
            MIGRATION: holding({ROOT: {"VCPU": 4, "VGPU": 1}}, None),
            INSTANCE: holding({ROOT: {"VCPU": 8, "VGPU": 2}}, 1),
        },
    )
    yield "POST", "/allocations", {MIGRATION: holding({}, 1), INSTANCE: holding({ROOT: {"VGPU": 1}}, 2)}
    yield "POST", "/allocations", {uuid: holding({ROOT: {"VGPU": 1}}, None) for uuid in MANY}
    yield (
        "POST",
        "/reshaper",
        {
            "inventories": {
                ROOT: {"resource_provider_generation": 5, "inventories": {"VCPU": {"total": 64}}},
                CHILD: {"resource_provider_generation": 2, "inventories": {"VGPU": {"total": 64}}},
            },
            "allocations": {uuid: holding({CHILD: {"VGPU": 1}}, 1) for uuid in MANY}
            | {INSTANCE: holding({CHILD: {"VGPU": 1}}, 3)},
        },
    )
    yield "POST", "/resource_providers", {"name": "other", "uuid": OTHER, "parent_provider_uuid": CHILD}
    yield "PUT", f"/resource_providers/{CHILD}", {"name": "renamed", "parent_provider_uuid": None}
    yield "DELETE", f"/resource_providers/{OTHER}", None
    for uuid in MANY[:10]:
        yield "DELETE", f"/allocations/{uuid}", None
    yield "DELETE", f"/resource_providers/{ROOT}/inventories", None


LATER = (
    *MIGRATIONS,
    "ALTER TABLE journal ADD COLUMN note TEXT; UPDATE journal SET note = 'a' || seq",
    "CREATE TABLE later (seq INTEGER) STRICT; INSERT INTO later SELECT seq FROM journal",
)
"""The migrations of a version to come."""


def migrated(state_dir: Path) -> SqliteFile:
    return SqliteFile.open(state_dir / FILE_NAME, application_id=APPLICATION_ID, migrations=LATER)


def opened(place: Path | str) -> Core:
    if not str(place).startswith("postgresql:"):
        return Core.open(Path(place))
    core = Core.open_shared(str(place), "http://here")
    while not core.takes_writes:
        time.sleep(0.001)
    return core


def main(mode: str, place: str) -> None:
    if mode == "migrate":
        migrated(Path(place)).close()
        return
    core = opened(place)
    for number, (method, path, body) in enumerate(program() if mode != "open" else ()):
        status = core.request(method, path, body, microversion="1.39").status
        os.write(1, f"{number} {status}\n".encode())
        if mode == "die" and status == 503:
            os.kill(os.getpid(), signal.SIGKILL)
    core.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
