"""Cards that are divided into several sizes: a decision of their model, and a claim of a guest.

python benchmarks/cards.py       targets: p50 of a decision under 0.2 ms; p50 of a claim with cells, a VF and
                                 a vGPU of a mixed size under 3 ms, over the embedded core, durable
"""

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from agent.claims.parse_request import Flavor, claim_for_flavor
from agent.claims.request import ClaimRequest
from agent.providers.divided_cards import Card, Unit, layout_of
from agent.tracker.tracker import ResourceTracker
from benchmarks.numa import CELLS, claimed, driver, opened, tell
from drivers.fake.host import CARD_TABLES, DividedGpu

DECISIONS, CLAIMS = 5_000, 400
TARGET_DECISION_MS, TARGET_CLAIM_MS = 0.2, 3.0
MIXED: Mapping[str, str] = {"CUSTOM_VGPU_4": "4", "CUSTOM_VGPU_8": "8", "CUSTOM_VGPU_20": "20"}


def main() -> None:
    for table in sorted(CARD_TABLES):
        tell(f"{table}: what is left, and a place", decisions(table), TARGET_DECISION_MS)
    cards = tuple(
        DividedGpu(f"0000:{number}5:00.0", "mixed A100 40 GB", MIXED, numa=number) for number in range(CELLS)
    )
    for nested in (False, True):
        with (
            tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as directory,
            opened(Path(directory), driver(nested, cards)) as tracker,
        ):
            claims(tracker, nested)


def decisions(table: str) -> list[float]:
    """A decision: what a card can still give of each size beside what is on it, and the unit of one more."""
    model = CARD_TABLES[table]
    names = {f"CUSTOM_{number}": shape for number, shape in enumerate(model.shapes)}
    card = Card.of(layout_of(model, names, lambda name, start: f"{name}@{start}")[0])
    draw, taken, took_ms = random.Random(table), list[Unit](), list[float]()
    for _ in range(DECISIONS):
        name = draw.choice(sorted(names))
        used = {each: sum(cls == each for cls, _ in taken) for each in names}
        begun = time.perf_counter()
        stock = card.stock(taken, used)
        left, given = stock.left, stock.together({name: 1})
        took_ms.append((time.perf_counter() - begun) * 1000)
        assert (given is not None) is (left[name] > 0)
        if given is not None and draw.random() < 0.6:
            taken.append((name, given[name][0]))
        elif taken:
            taken.remove(draw.choice(taken))
    return took_ms


def claims(tracker: ResourceTracker, nested: bool) -> None:
    called = "nested" if nested else "flat"
    draw = random.Random(17)
    for verb, before in (("empty", 0), ("half full", 24)):
        for _ in range(before):
            tracker.claim(guest(draw.choice(sorted(MIXED))))
        took = [claimed(tracker, guest("CUSTOM_VGPU_4")) for _ in range(CLAIMS)]
        tell(f"{called}: claiming 2 cells, a VF and a mixed-size vGPU, host {verb}", took, TARGET_CLAIM_MS)


def guest(vgpu: str) -> ClaimRequest:
    specs = {"hw:numa_nodes": "2", "hw:cpu_policy": "dedicated", "hw:mem_page_size": "2MB"}
    specs |= {"group_policy": "none", "resources_NIC:SRIOV_NET_VF": "1", f"resources_GPU:{vgpu}": "1"}
    return claim_for_flavor(str(uuid4()), Flavor(8, 4096, 0, specs))


if __name__ == "__main__":
    main()
