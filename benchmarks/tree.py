"""How long the provider tree takes, in milliseconds: `python benchmarks/tree.py [providers]`."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid5

from agent.driver import DescribedInventory, DescribedProvider, Description
from agent.providers.plan import plan
from agent.providers.resolve import OwnedProviders, resolve
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "5a8f5cbd-5d75-4e5e-9d3f-0d8f3b3a6f01"
ROUNDS = 21


def described(count: int) -> Description:
    """A host, cells of 16 devices each, and an inventory and two traits on every device."""
    cells = [f"host_numa{n}" for n in range((count - 1) // 17 + 1)]
    host = DescribedProvider(
        "host", None, {"MEMORY_MB": DescribedInventory(1 << 20)}, frozenset({"COMPUTE_NODE"})
    )
    devices = [
        DescribedProvider(
            f"host_pci_{n:04x}",
            cells[n % len(cells)],
            {"VGPU": DescribedInventory(16)},
            frozenset({"CUSTOM_T4", "OWNER_NOVA"}),
        )
        for n in range(count - 1 - len(cells))
    ]
    return Description((host, *(DescribedProvider(cell, "host") for cell in cells), *devices))


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


def copied(tree: ProviderTree) -> list[Provider]:
    """Equal providers that share nothing, as a fresh read from placement gives them."""
    return [
        replace(
            provider,
            inventories={n: replace(i) for n, i in provider.inventories.items()},
            traits=frozenset(set(provider.traits)),
        )
        for provider in tree
    ]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    description = described(count)
    resolved = resolve(description, ProviderTree(), OwnedProviders(), ROOT)
    tree = resolved.tree
    fresh = copied(tree)
    read = ProviderTree(fresh)
    last = tree[str(uuid5(UUID(ROOT), description.providers[-1].name))]
    changed = tree.with_provider(replace(last, inventories={"VGPU": Inventory(8)}))
    everything = plan(ProviderTree(), tree)
    print(f"{len(tree)} providers, {len(everything.operations)} operations for a first report, medians in ms")
    for what, work in (
        ("build the tree", lambda: ProviderTree(fresh)),
        ("plan, the same tree", lambda: plan(tree, tree)),
        ("plan, an equal tree", lambda: plan(read, tree)),
        ("plan, one inventory changed", lambda: plan(read, changed)),
        ("plan, a first report", lambda: plan(ProviderTree(), tree)),
        ("resolve a description", lambda: resolve(description, read, resolved.owned, ROOT)),
    ):
        print(f"{median_ms(work):9.2f}  {what}")


if __name__ == "__main__":
    main()
