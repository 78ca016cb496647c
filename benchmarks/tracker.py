"""Claims through the tracker and the embedded core, both durable: 1 and 16 clients.

Target: at least 1000 claims a second with 16 clients, p99 under 50 ms. `python benchmarks/tracker.py profile`
prints where 16 clients spend their time.
"""

import cProfile
import pstats
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

from agent.claims.request import ClaimRequest, RequestGroup
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from agent.tree import Inventory, Provider, ProviderTree

CLAIMS = 2000
GPUS = 8
TARGET_PER_S = 1000.0
TARGET_P99_MS = 50.0


def main() -> None:
    for clients in (1, 16):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as directory:
            run(Path(directory), clients, CLAIMS // (4 if clients == 1 else 1))


def run(directory: Path, clients: int, claims: int) -> None:
    client = PlacementClient(open_transport("embedded", state_dir=directory))
    journal = Journal.open(directory)
    tracker = ResourceTracker(journal, client)
    tree = host(client)
    tracker.refresh(tree, {}, {})
    tracker.admission.open()
    asked = [request() for _ in range(claims)]
    for verb in ("claim", "release"):
        took_ms = [0.0] * claims
        started = time.perf_counter()
        work(tracker, verb, asked, took_ms, clients)
        seconds = time.perf_counter() - started
        tell(verb, clients, claims / seconds, took_ms)
    assert not any(client.provider_usages(each.uuid)[name] for each in tree for name in each.inventories)
    journal.close()
    client.close()


def host(client: PlacementClient) -> ProviderTree:
    root = Provider(str(uuid4()), "host")
    wide = {"VCPU": Inventory(10**6), "MEMORY_MB": Inventory(10**9), "DISK_GB": Inventory(10**6)}
    client.put_inventories(root.uuid, client.create_provider(root), wide)
    for number in range(GPUS):
        gpu = Provider(str(uuid4()), f"gpu{number}", root.uuid)
        client.put_inventories(gpu.uuid, client.create_provider(gpu), {"VGPU": Inventory(10**5)})
    return client.read_tree(root.uuid)


def request() -> ClaimRequest:
    """A guest with a VGPU: 4 classes on 2 providers."""
    common = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20})
    return ClaimRequest(str(uuid4()), (common, RequestGroup("1", {"VGPU": 1})), name="benchmark")


def work(
    tracker: ResourceTracker, verb: str, asked: list[ClaimRequest], took_ms: list[float], clients: int
) -> None:
    def one(first: int) -> None:
        for number in range(first, len(asked), clients):
            begun = time.perf_counter()
            if verb == "claim":
                tracker.claim(asked[number])
            else:
                tracker.release(asked[number].consumer)
            took_ms[number] = (time.perf_counter() - begun) * 1000

    threads = [threading.Thread(target=one, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tell(verb: str, clients: int, per_s: float, took_ms: list[float]) -> None:
    p99 = statistics.quantiles(took_ms, n=100)[98]
    line = (
        f"{verb}s, {clients:2} client{'s' if clients > 1 else ' '}: {per_s:6.0f}/s, "
        f"p50 {statistics.median(took_ms):6.2f} ms, p99 {p99:6.2f} ms"
    )
    if verb == "claim" and clients > 1:
        good = per_s >= TARGET_PER_S and p99 < TARGET_P99_MS
        line += f"  (target {TARGET_PER_S:.0f}/s, {TARGET_P99_MS:.0f} ms: {'met' if good else 'missed'})"
    print(line)


def profile() -> None:
    """All threads' time by function: each profiles itself."""
    profiles: list[cProfile.Profile] = []
    plain = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        mine = cProfile.Profile(time.thread_time)
        profiles.append(mine)
        mine.runcall(plain, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as directory:
        run(Path(directory), 16, CLAIMS)
    threading.Thread.run = plain  # type: ignore[method-assign]
    total = pstats.Stats(*profiles)
    total.sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    profile() if sys.argv[1:] == ["profile"] else main()
