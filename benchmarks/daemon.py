"""The daemon as a process, with the fake driver and the embedded placement.

Time until READY=1, resident memory when idle (target < 80 MB), and how long a claim over the socket takes:
one client (target p50 2 ms, p99 10 ms), sixteen at once (target p99 50 ms).
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

from agent.cli.client import Client

CLIENTS = 16
CLAIMS_ALONE = 300
CLAIMS_EACH = 40
READY_MAX_S = 30


def started(directory: Path) -> tuple["subprocess.Popen[bytes]", float]:
    """The process, and the seconds until it was ready."""
    (directory / "plimsoll.conf").write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {directory}/state\n"
        f"[api]\nsocket = {directory}/plimsoll.sock\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(directory / "notify"))
        manager.settimeout(READY_MAX_S)
        begun = time.perf_counter()
        command = ["-m", "agent.cli.main", "agent", "--config-file", str(directory / "plimsoll.conf")]
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "NOTIFY_SOCKET": str(directory / "notify")},
            stderr=subprocess.DEVNULL,
        )
        while b"READY=1" not in manager.recv(65536):
            pass
        return process, time.perf_counter() - begun


def resident_mb(process: "subprocess.Popen[bytes]") -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


def claims_ms(client: Client, count: int) -> list[float]:
    """How long each of `count` claims took; each is released after it."""
    times = []
    for _ in range(count):
        consumer = str(uuid4())
        body = {"consumer": consumer, "groups": [{"resources": {"VCPU": 1, "MEMORY_MB": 64}}]}
        begun = time.perf_counter()
        client.request("POST", "/v1/claims", body)
        times.append((time.perf_counter() - begun) * 1000)
        client.request("DELETE", f"/v1/claims/{consumer}")
    return times


def shown(what: str, times: list[float]) -> None:
    hundredths = statistics.quantiles(times, n=100)
    print(f"{what}: p50 {hundredths[49]:.2f} ms, p99 {hundredths[98]:.2f} ms, of {len(times)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        process, ready_s = started(directory)
        try:
            client = Client(str(directory / "plimsoll.sock"), 30.0)
            print(f"ready after {ready_s * 1000:.0f} ms, resident {resident_mb(process):.1f} MB")
            shown("claim, one client", claims_ms(client, CLAIMS_ALONE))
            times: list[float] = []
            threads = [
                threading.Thread(target=lambda: times.extend(claims_ms(client, CLAIMS_EACH)))
                for _ in range(CLIENTS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            shown(f"claim, {CLIENTS} clients at once", times)
            print(f"resident after {CLAIMS_ALONE + len(times)} claims: {resident_mb(process):.1f} MB")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    main()
