"""Random contents of a placement that hold together, for the tests of export, import and check."""

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st

from agent.placement.client import ConsumerAllocations
from agent.placement.connect import open_transport
from agent.placement.snapshot import UNTYPED, PlacementSnapshot
from agent.placement.transport import Transport
from agent.tree import Inventory, Provider

CLASSES = ("VCPU", "MEMORY_MB", "VGPU", "CUSTOM_FPGA")
TRAITS = ("HW_CPU_X86_AVX2", "MISC_SHARES_VIA_AGGREGATE", "CUSTOM_GOLD", "CUSTOM_RACK_1")
AGGREGATES = tuple(str(uuid.UUID(int=index)) for index in (1, 2, 3))


def provider_uuid(index: int) -> str:
    return str(uuid.UUID(int=0xA0_0000 + index))


def consumer_uuid(index: int) -> str:
    return str(uuid.UUID(int=0xC0_0000 + index))


inventories = st.builds(
    lambda total, reserved, step, ratio: Inventory(
        total, min(reserved, total), step, 1000 * step, step, ratio
    ),
    st.integers(50, 1000),
    st.integers(0, 20),
    st.integers(1, 3),
    st.sampled_from([1.0, 1.5, 16.0]),
)


@st.composite
def contents(draw: st.DrawFn) -> PlacementSnapshot:
    """Up to 5 providers in trees, and up to 5 consumers on what they offer, some of it overdrawn."""
    providers: list[Provider] = []
    for index in range(draw(st.integers(0, 5))):
        above = [None, *(each.uuid for each in providers)]
        providers.append(
            Provider(
                provider_uuid(index),
                draw(st.sampled_from(["host", "Hôte", "gpu 0"])) + f"-{index}",
                draw(st.sampled_from(above)),
                draw(st.dictionaries(st.sampled_from(CLASSES), inventories, max_size=3)),
                draw(st.frozensets(st.sampled_from(TRAITS))),
                draw(st.frozensets(st.sampled_from(AGGREGATES))),
                generation=draw(st.integers(0, 9)),
            )
        )
    offers = [(each.uuid, name) for each in providers for name in each.inventories]
    consumers = [_consumer(draw, index, offers) for index in range(draw(st.integers(0, 5)) if offers else 0)]
    return PlacementSnapshot.of(
        providers,
        consumers,
        {"CUSTOM_GOLD", "CUSTOM_RACK_1"} | draw(st.sets(st.sampled_from(["CUSTOM_UNUSED"]))),
        {"CUSTOM_FPGA"} | draw(st.sets(st.sampled_from(["CUSTOM_SPARE"]))),
    )


def _consumer(draw: st.DrawFn, index: int, offers: list[tuple[str, str]]) -> ConsumerAllocations:
    held: dict[str, dict[str, int]] = {}
    for provider, name in draw(st.lists(st.sampled_from(offers), min_size=1, max_size=3, unique=True)):
        held.setdefault(provider, {})[name] = draw(st.integers(1, 400))
    return ConsumerAllocations(
        consumer_uuid(index),
        held,
        draw(st.integers(1, 4)),
        draw(st.sampled_from(["p", "q"])),
        draw(st.sampled_from(["u", "v"])),
        draw(st.sampled_from(["INSTANCE", "MIGRATION", UNTYPED])),
    )


def small() -> PlacementSnapshot:
    """A host with a GPU below it, and one consumer."""
    host = Provider(
        provider_uuid(0),
        "host1",
        None,
        {"VCPU": Inventory(8, allocation_ratio=2.0), "MEMORY_MB": Inventory(4096)},
        frozenset({"HW_CPU_X86_AVX2", "CUSTOM_GOLD"}),
        frozenset(AGGREGATES[:1]),
        3,
    )
    gpu = Provider(provider_uuid(1), "host1_gpu", host.uuid, {"VGPU": Inventory(4)}, generation=1)
    consumer = ConsumerAllocations(
        consumer_uuid(0), {host.uuid: {"VCPU": 2, "MEMORY_MB": 512}, gpu.uuid: {"VGPU": 1}}, 1, "p", "u"
    )
    return PlacementSnapshot.of([host, gpu], [consumer], ["CUSTOM_GOLD"], [])


@contextmanager
def fresh_core() -> Iterator[Transport]:
    """An embedded core that is empty, in a directory of its own."""
    with (
        TemporaryDirectory() as directory,
        closing(open_transport("embedded", state_dir=Path(directory))) as transport,
    ):
        yield transport
