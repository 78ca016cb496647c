"""The small world that the random programs live in: few names, small amounts, so that things meet."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

PROVIDERS = tuple(f"{number:08x}-1000-4000-8000-000000000000" for number in range(12))
CONSUMERS = tuple(f"{number:08x}-2000-4000-8000-000000000000" for number in range(6))
AGGREGATES = tuple(f"{number:08x}-3000-4000-8000-000000000000" for number in range(4))
CUSTOM_TRAITS = ("CUSTOM_T0", "CUSTOM_T1", "CUSTOM_T2")
CUSTOM_CLASSES = ("CUSTOM_C0", "CUSTOM_C1")
SHARING = "MISC_SHARES_VIA_AGGREGATE"
TRAITS = (*CUSTOM_TRAITS, "HW_NUMA_ROOT", SHARING)
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "VGPU", *CUSTOM_CLASSES)
LATEST = 39

providers = st.sampled_from(PROVIDERS)
consumers = st.sampled_from(CONSUMERS)
aggregates = st.sampled_from(AGGREGATES)
traits = st.sampled_from((*TRAITS, *TRAITS, "CUSTOM_UNKNOWN"))
classes = st.sampled_from((*CLASSES, "CUSTOM_UNKNOWN"))
names = st.sampled_from(tuple(f"host{number}" for number in range(12)))
minors = st.one_of(st.just(LATEST), st.just(LATEST), st.integers(0, LATEST))
junk_values = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    1.5,
    "",
    "x",
    "host0",
    [],
    {},
    "a" * 201,
    "a" * 256,
    [1],
    {"x": 1},
)
junk = st.sampled_from(junk_values)


def rarely(one_in: int) -> st.SearchStrategy[bool]:
    """True about once in `one_in`; shrinks to False."""
    return st.integers(1, one_in).map(lambda number: number == one_in)


@st.composite
def perhaps_broken(draw: st.DrawFn, body: Any, one_in: int = 12) -> Any:
    """`body`, or once in a while a copy with one thing removed, added or replaced by junk."""
    return _broken(draw, body) if draw(rarely(one_in)) else body


def _broken(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or draw(rarely(6)):
        return draw(junk)
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    what = draw(st.sampled_from(("deeper", "remove", "add")))
    if what == "deeper":
        copy[key] = _broken(draw, copy[key])
    elif what == "remove":
        del copy[key]
    elif isinstance(copy, dict):
        copy[draw(st.sampled_from(("extra", "generation", *PROVIDERS[:2])))] = draw(junk)
    else:
        copy.append(draw(st.one_of(junk, st.just(copy[0]))))
    return copy


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, int | float]:
    """One inventory record: `total` and any of the optional fields."""
    total = draw(st.integers(1, 8))
    record: dict[str, int | float] = {"total": total}
    optional = {
        "reserved": st.integers(0, total),
        "min_unit": st.integers(1, 2),
        "max_unit": st.integers(1, 8),
        "step_size": st.integers(1, 2),
        "allocation_ratio": st.sampled_from((0.5, 1.0, 1.5, 2.0, 16)),
    }
    for field in draw(st.lists(st.sampled_from(sorted(optional)), max_size=2, unique=True)):
        record[field] = draw(optional[field])
    return record


KINDS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("VCPU", "MEMORY_MB"), ("HW_NUMA_ROOT",)),
    (("VGPU",), ()),
    (("VGPU", "CUSTOM_C0"), ("CUSTOM_T0",)),
    (("DISK_GB",), (SHARING,)),
    (("VCPU", "MEMORY_MB", "DISK_GB"), ("CUSTOM_T1",)),
    ((), ("HW_NUMA_ROOT",)),
)
"""What the providers of the first forest are: the classes they offer and the traits they have."""


@st.composite
def kinds(draw: st.DrawFn) -> tuple[dict[str, dict[str, int | float]], list[str]]:
    """Inventories and traits of a provider of one of `KINDS`, with changes now and then."""
    names_, labels = draw(st.sampled_from(KINDS))
    if draw(rarely(4)):
        labels = tuple(draw(st.lists(st.sampled_from(TRAITS), max_size=2, unique=True)))
    plain = st.builds(dict, total=st.integers(2, 8))
    return {name: draw(inventories() if draw(rarely(3)) else plain) for name in names_}, list(labels)


inventory_sets = st.dictionaries(st.sampled_from(CLASSES), inventories(), max_size=4)
resources = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 4), min_size=1, max_size=2)
trait_sets = st.lists(st.sampled_from(TRAITS), max_size=3, unique=True)
aggregate_sets = st.lists(aggregates, max_size=2, unique=True)
