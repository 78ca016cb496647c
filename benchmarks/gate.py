"""What libvirt's hook adds to the start of a guest: the process, and the agent's answer.

    PYTHONPATH=tests python -m benchmarks.gate

A whole agent over the fake driver answers from another process. A start may take 50 ms longer, or this ends
with 1; what a call costs in processor time is told, too, since that is the same on a busy machine.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from kits.daemon_process import Daemon
from kits.gate import domain, vf

from agent.gate import install

ROUNDS = 100
ADDED_MAX_MS = 50.0


def main() -> int:
    """1 where a start takes longer than it may."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-gate-") as name:
        folder = Path(name)
        config, hook = folder / "gate.conf", folder / "hook"
        agent = Daemon(folder, {"DEFAULT": {"compute_driver": "fake"}, "placement": {"kind": "embedded"}})
        config.write_text(f"socket = {agent.socket}\n")
        hook.write_text(install.hook_script(config=config))
        hook.chmod(0o755)
        agent.start()
        try:
            return 0 if measure(hook) < ADDED_MAX_MS else 1
        finally:
            agent.stop()


def measure(hook: Path) -> float:
    """The longest of the medians of what a guest waits for, in ms."""
    known = domain(str(uuid4()), vcpus=1, memory_mb=64)

    def call(operation: str, sub_operation: str, xml: str) -> None:
        done = subprocess.run(
            [str(hook), "vm", operation, sub_operation, "-"],
            input=xml.encode(),
            capture_output=True,
            check=True,
        )
        assert done.stdout == b""

    def empty() -> None:
        subprocess.run([str(install.PYTHON), "-IS", "-c", "pass"], input=b"", capture_output=True, check=True)

    def new() -> None:
        call("prepare", "begin", domain(str(uuid4()), vcpus=1, memory_mb=64))

    show("an empty Python, for comparison", empty)
    show("release", lambda: call("release", "end", known))
    device = domain(str(uuid4()), vcpus=1, memory_mb=64, devices=vf("0000:41:02.1"))
    return max(
        show("started, reconnect, ... (nobody is asked)", lambda: call("started", "begin", known)),
        show("prepare of a guest that is claimed for", lambda: call("prepare", "begin", known)),
        show("prepare of a new guest (claimed, on disk)", new),
        show("prepare with a virtual function", lambda: call("prepare", "begin", device)),
    )


def show(what: str, action: Callable[[], None]) -> float:
    """The median, in ms."""
    times = []
    used = _children_s()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    median = statistics.median(times)
    print(
        f"{what:45}  least {times[0]:6.1f}  p50 {median:6.1f}  p99 {times[int(ROUNDS * 0.99) - 1]:6.1f} ms  "
        f"processor {(_children_s() - used) / ROUNDS * 1000:6.1f} ms"
    )
    return median


def _children_s() -> float:
    """What the processes that ended used, in seconds; the agent is none of them yet."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
