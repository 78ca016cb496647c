"""The drawing of the tree, to the letter, and the table of `plimsoll instances`."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import INSTANCES

from agent.api.shapes.instance import INSTANCE_COLUMNS
from agent.cli.output import Style, table_lines
from agent.cli.tree import BAR_CELLS, tree_lines

PLAIN = Style()


def provider(
    name: str, parent: str | None = None, traits: tuple[str, ...] = (), **classes: tuple[int, int]
) -> dict[str, Any]:
    """`classes` are (used, total)."""
    return {
        "uuid": f"uuid-{name}",
        "name": name,
        "parent_provider_uuid": f"uuid-{parent}" if parent else None,
        "inventories": {name: inventory(total) for name, (_, total) in classes.items()},
        "usages": {name: used for name, (used, _) in classes.items()},
        "traits": list(traits),
    }


def inventory(total: int, reserved: int = 0, ratio: float = 1.0) -> dict[str, Any]:
    capacity = int((total - reserved) * ratio)
    return {"total": total, "reserved": reserved, "allocation_ratio": ratio, "capacity": capacity}


def drawn(providers: list[dict[str, Any]], style: Style = PLAIN, traits: bool = False) -> str:
    return "\n".join(tree_lines(providers, style, traits=traits))


NESTED = [
    provider("host1", VCPU=(8, 64), MEMORY_MB=(0, 65024)),
    provider("cell0", "host1", ("HW_NUMA_ROOT",)),
    provider("gpu0", "cell0", VGPU=(4, 4)),
    provider("gpu1", "cell0", VGPU=(3, 4)),
    provider("cell1", "host1", ("HW_NUMA_ROOT",), PCPU=(1, 1000)),
]


def test_children_hang_under_their_parents() -> None:
    assert drawn(NESTED) == (
        """\
host1  uuid-host1
│  VCPU        ███░░░░░░░░░░░░░░░░░  8/64
│  MEMORY_MB   ░░░░░░░░░░░░░░░░░░░░  0/65024
├─ cell0  uuid-cell0
│  ├─ gpu0  uuid-gpu0
│  │     VGPU  ████████████████████  4/4
│  └─ gpu1  uuid-gpu1
│        VGPU  ███████████████░░░░░  3/4
└─ cell1  uuid-cell1
      PCPU     █░░░░░░░░░░░░░░░░░░░  1/1000"""
    )


def test_without_utf8_it_is_drawn_in_ascii() -> None:
    assert drawn(NESTED, Style(unicode=False)) == (
        """\
host1  uuid-host1
|  VCPU        ###.................  8/64
|  MEMORY_MB   ....................  0/65024
|- cell0  uuid-cell0
|  |- gpu0  uuid-gpu0
|  |     VGPU  ####################  4/4
|  `- gpu1  uuid-gpu1
|        VGPU  ###############.....  3/4
`- cell1  uuid-cell1
      PCPU     #...................  1/1000"""
    )


def test_traits_are_shown_when_asked_for_and_wrapped() -> None:
    traits = ("COMPUTE_NODE", "HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE")
    lone = [provider("host1", None, traits, VCPU=(0, 4))]
    assert "COMPUTE_NODE" not in drawn(lone)
    assert drawn(lone, Style(width=50), traits=True) == (
        """\
host1  uuid-host1
   VCPU  ░░░░░░░░░░░░░░░░░░░░  0/4
   traits: COMPUTE_NODE HW_CPU_X86_AVX
           HW_CPU_X86_AVX2 HW_CPU_X86_SSE"""
    )


def test_what_is_unusual_is_said() -> None:
    host = provider("host1", VCPU=(20, 4), DISK_GB=(5, 100), VGPU=(2, 1))
    host["inventories"]["VCPU"] = inventory(5, reserved=1, ratio=4.0)
    del host["inventories"]["VGPU"]
    host["inventories"]["DISK_GB"] = inventory(100, reserved=100)
    assert drawn([host]) == (
        """\
host1  uuid-host1
   VCPU     ████████████████████  20/16  (over-used, total 5, reserved 1, ratio 4)
   DISK_GB  ████████████████████   5/0   (over-used, total 100, reserved 100)
   VGPU     ████████████████████   2/0   (no inventory)"""
    )


def test_colour_says_how_full_and_changes_nothing_else() -> None:
    coloured = drawn(NESTED, Style(colour=True))
    assert "\x1b[31m" + "█" * BAR_CELLS + "\x1b[0m" in coloured
    assert "\x1b[32m███░" in coloured
    for code in ("1", "2", "31", "32", "33", "0"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == drawn(NESTED)


def test_a_name_cannot_play_with_the_terminal() -> None:
    assert drawn([provider("evil\x1b[2J\nname")]).splitlines()[0].startswith(r"evil\x1b[2J\nname")


def test_nothing_draws_nothing() -> None:
    assert drawn([]) == ""


def test_deep_trees_are_drawn() -> None:
    deep = [provider("p0")] + [provider(f"p{n}", f"p{n - 1}") for n in range(1, 2000)]
    assert len(drawn(deep).splitlines()) == 2000


PARENTS = st.lists(st.integers(0, 10**6), max_size=30)


@settings(deadline=None)
@given(parents=PARENTS, used=st.integers(0, 300), total=st.integers(0, 200))
def test_each_provider_is_drawn_once_and_each_bar_is_as_long(
    parents: list[int], used: int, total: int
) -> None:
    providers = [provider("p0", VCPU=(used, total))] + [
        provider(f"p{n}", f"p{parent % n}", VCPU=(used, total)) for n, parent in enumerate(parents, 1)
    ]
    lines = drawn(providers).splitlines()
    assert len(lines) == 2 * len(providers)
    for each in providers:
        assert sum(line.endswith(f" {each['uuid']}") for line in lines) == 1
    for line in lines:
        cells = line.count("█") + line.count("░")
        assert cells in (0, BAR_CELLS)
        if cells:
            assert (line.count("█") == 0) == (used == 0)
            assert (line.count("░") == 0) == (used > 0 and used >= total)


def test_instances_say_what_is_missing() -> None:
    guest = {"state": "running", "resources": {"VCPU": 1}, "units": []}
    claim: dict[str, Any] = {"state": "claimed", "adopted": True, "request": {"alternative": 2}}
    claim |= {"allocations": {"p": {"resources": {"VCPU": 2}}}}
    here = {"moved_away": False, "migration_of": None}
    made = {**claim, "made_by": {"uid": 7, "program": ""}}
    lines = list(
        table_lines(
            INSTANCE_COLUMNS,
            [
                {**here, "uuid": "u1", "name": "a", "guest": guest, "claim": None},
                {**here, "uuid": "u2", "name": "", "guest": None, "claim": claim},
                {**here, "uuid": "u3", "name": "b", "guest": guest, "moved_away": True, "claim": made},
                {**here, "uuid": "u4", "name": "c", "guest": None, "migration_of": "u3", "claim": made},
            ],
            Style(),
        )
    )
    assert lines == [
        "UUID  NAME  GUEST    CLAIM                            RESOURCES  MADE BY",
        "u1    a     running  UNCLAIMED                        VCPU=1     -",
        "u2    -     none     claimed, adopted, alternative 2  VCPU=2     -",
        "u3    b     running  MOVED AWAY                       VCPU=2     uid 7",
        "u4    c     none     migration                        VCPU=2     uid 7",
    ]


def test_a_claim_counts_the_resources_of_all_its_providers() -> None:
    web1 = list(table_lines(INSTANCE_COLUMNS, INSTANCES["instances"], Style()))[1]
    assert web1.endswith("MEMORY_MB=4096,VCPU=2,VGPU=1      ansible (uid 0)")
