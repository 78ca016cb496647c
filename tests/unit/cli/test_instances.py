"""The table of `plimsoll instances`."""

from samples import INSTANCES

from agent.api.shapes.instances import INSTANCE_COLUMNS
from agent.cli.output import Style, table_lines


def test_instances_say_what_is_missing() -> None:
    guest = {"state": "running", "resources": {"VCPU": 1}, "units": []}
    claim = {"state": "claimed", "adopted": True, "allocations": {"p": {"resources": {"VCPU": 2}}}}
    here = {"moved_away": False, "migration_of": None}
    lines = list(
        table_lines(
            INSTANCE_COLUMNS,
            [
                {**here, "uuid": "u1", "name": "a", "guest": guest, "claim": None},
                {**here, "uuid": "u2", "name": "", "guest": None, "claim": claim},
                {**here, "uuid": "u3", "name": "b", "guest": guest, "moved_away": True, "claim": claim},
                {**here, "uuid": "u4", "name": "c", "guest": None, "migration_of": "u3", "claim": claim},
            ],
            Style(),
        )
    )
    assert lines == [
        "UUID  NAME  GUEST    CLAIM             RESOURCES",
        "u1    a     running  UNCLAIMED         VCPU=1",
        "u2    -     none     claimed, adopted  VCPU=2",
        "u3    b     running  MOVED AWAY        VCPU=2",
        "u4    c     none     migration         VCPU=2",
    ]


def test_a_claim_counts_the_resources_of_all_its_providers() -> None:
    web1 = list(table_lines(INSTANCE_COLUMNS, INSTANCES["instances"], Style()))[1]
    assert web1.endswith("MEMORY_MB=4096,VCPU=2,VGPU=1")
