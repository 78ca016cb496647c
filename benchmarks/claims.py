"""How long a claim takes over the real agent's local API, in milliseconds: `python benchmarks/claims.py`.

Starts the agent with the fake driver and the embedded placement, so each claim is durable before it is
answered; claims and releases with 1 and with 16 clients, each on a connection of its own that it keeps.
"""

import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from uuid import uuid4

ROUNDS = 640
PATIENCE_S = 30
WANTED = {"VCPU": 1, "MEMORY_MB": 64}


class Client:
    def __init__(self, path: Path) -> None:
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(str(path))
        self.claims: list[float] = []
        self.releases: list[float] = []

    def work(self, rounds: int) -> None:
        for _ in range(rounds):
            consumer = str(uuid4())
            body = json.dumps({"consumer": consumer, "groups": [{"resources": WANTED}]})
            self.claims.append(self._timed("POST", "/v1/claims", body, 201))
            self.releases.append(self._timed("DELETE", f"/v1/claims/{consumer}", None, 200))

    def _timed(self, method: str, url: str, body: str | None, expected: int) -> float:
        headers = {"Content-Type": "application/json"} if body else {}
        begin = time.perf_counter()
        self._connection.request(method, url, body, headers)
        reply = self._connection.getresponse()
        text = reply.read()
        took = (time.perf_counter() - begin) * 1000
        assert reply.status == expected, text
        return took


def spread(name: str, times: list[float]) -> None:
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(f"{name:<22} median {statistics.median(times):7.2f}   p99 {p99:7.2f}   most {times[-1]:7.2f}")


def measure(path: Path, count: int) -> None:
    clients = [Client(path) for _ in range(count)]
    threads = [threading.Thread(target=client.work, args=(ROUNDS // count,)) for client in clients]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    claims = [each for client in clients for each in client.claims]
    spread(f"claim, {count} clients", claims)
    spread(f"release, {count} clients", [each for client in clients for each in client.releases])
    print(f"  {2 * len(claims) / took:.0f} requests a second")


def answers(path: Path, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "the agent ended"
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path, file = directory / "s", directory / "plimsoll.conf"
        file.write_text(
            f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {directory / 'state'}\n"
            f"[api]\nsocket = {path}\n[log]\nlevel = error\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "agent.cli.main", "agent", "--config-file", str(file)]
        with subprocess.Popen(command) as process:
            end = time.monotonic() + PATIENCE_S
            while not answers(path, process) and time.monotonic() < end:
                time.sleep(0.02)
            for count in (1, 16):
                measure(path, count)
            process.terminate()


if __name__ == "__main__":
    main()
