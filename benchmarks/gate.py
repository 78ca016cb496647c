"""What libvirt's hook adds to the start of a guest: the process, and the agent's answer.

    PYTHONPATH=tests python -m benchmarks.gate

A whole agent over the fake driver answers from another process; the figure to reach is 50 ms a start.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from gatekit import domain, vf
from integration.daemonprocess import Daemon

from agent.gate import install

ROUNDS = 100


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-gate-") as name:
        folder = Path(name)
        config, hook = folder / "gate.conf", folder / "hook"
        agent = Daemon(folder, {"DEFAULT": {"compute_driver": "fake"}, "placement": {"kind": "embedded"}})
        config.write_text(f"socket = {agent.socket}\n")
        hook.write_text(install.text(config=config))
        hook.chmod(0o755)
        agent.start()
        try:
            measure(hook)
        finally:
            agent.stop()


def measure(hook: Path) -> None:
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

    show("an empty Python, for comparison", empty)
    show("reconnect, started, ... (nobody is asked)", lambda: call("started", "begin", known))
    show("prepare of a guest that is claimed for", lambda: call("prepare", "begin", known))
    show(
        "prepare of a new guest (claimed, on disk)",
        lambda: call("prepare", "begin", domain(str(uuid4()), vcpus=1, memory_mb=64)),
    )
    show("release", lambda: call("release", "end", known))
    device = domain(str(uuid4()), vcpus=1, memory_mb=64, devices=vf("0000:41:02.1"))
    show("prepare with a virtual function", lambda: call("prepare", "begin", device))


def show(what: str, action: Callable[[], None]) -> None:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1000)
    times.sort()
    print(
        f"{what:45}  least {times[0]:6.1f}  p50 {statistics.median(times):6.1f}  "
        f"p99 {times[int(ROUNDS * 0.99) - 1]:6.1f} ms"
    )


if __name__ == "__main__":
    main()
