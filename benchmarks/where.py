"""The fleet's question to a served core, and claims beside an endless stream of it.

    python -m benchmarks.where [--hosts N]

1000 hosts of 8 GPUs, half of whose CPUs are in use, over the Unix socket of a core in another process. The
claims go to a tree of their own, the questions beside them come from a third process.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent.claims.parse_request import parse_addition
from agent.fleet.answer import Answer, AskedRequest, where
from agent.placement.client import PlacementClient
from agent.placement.transport import SocketTransport
from benchmarks.beside import show, timed_claim
from benchmarks.embedded_door import over, served
from benchmarks.embedded_world import Ask, Trio, done, held, provider

GPUS = 8
ROUNDS = 50
STREAM_S = 10.0
QUESTIONS: dict[str, dict[str, Any]] = {
    "it fits": {"flavor": {"vcpus": 4, "memory_mb": 8192, "disk_gb": 20}},
    "it fits, with a GPU": {
        "flavor": {"vcpus": 4, "memory_mb": 8192, "extra_specs": {"resources1:VGPU": "1"}},
    },
    "not now": {"flavor": {"vcpus": 40, "memory_mb": 8192, "extra_specs": {"resources1:VGPU": "1"}}},
    "never": {"flavor": {"vcpus": 4, "memory_mb": 8192, "extra_specs": {"resources1:VGPU": "17"}}},
}


def main() -> None:
    hosts = int(sys.argv[sys.argv.index("--hosts") + 1]) if "--hosts" in sys.argv else 1000
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name,
        served(Path(name)) as address,
    ):
        ask = over(address)
        for number in range(hosts):
            make_host(ask, f"host{number}", number)
        for what, body in QUESTIONS.items():
            times = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                answer = question(address, body)
                times.append((time.perf_counter() - began) * 1000)
            show(f"{what} ({answer.sentence})", times)
        ask = over(address)  # the server has closed the other connection, idle for so long
        trio = Trio(ask)
        show("claims alone", [timed_claim(trio, ask) for _ in range(500)])
        asker = multiprocessing.get_context("spawn").Process(target=ask_on, args=(address,))
        asker.start()
        time.sleep(1.0)
        beside: list[float] = []
        while asker.is_alive():
            beside.append(timed_claim(trio, ask))
        show("claims beside an endless stream of these questions", beside)


def make_host(ask: Ask, name: str, number: int) -> None:
    root = provider(ask, name, VCPU=64, MEMORY_MB=262_144, DISK_GB=2000)
    for card in range(GPUS):
        provider(ask, f"{name}_gpu{card}", root, VGPU=16)
    for guest in range(8):
        amounts = {"VCPU": 4, "MEMORY_MB": 8192 + number, "DISK_GB": 10}
        done(ask, "PUT", f"/allocations/{number:08x}-0000-4000-8000-{guest:012x}", held({root: amounts}))


def question(address: Path, body: dict[str, Any]) -> Answer:
    request = parse_addition(body, "")
    return where(PlacementClient(SocketTransport(address)), [AskedRequest(request, body)])


def ask_on(address: Path) -> None:
    until = time.monotonic() + STREAM_S
    while time.monotonic() < until:
        for body in QUESTIONS.values():
            question(address, body)


if __name__ == "__main__":
    main()
