"""What a terminal shows while a command waits."""

import socket
from pathlib import Path

from kits.terminal import Terminal

from agent.errors import ExitCode


def test_what_takes_its_time_is_told_at_a_terminal_and_gone_afterwards(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "hangs"))
        silent.listen()
        with Terminal(tmp_path / "hangs", "--timeout", "1.4", "audit") as terminal:
            terminal.read_until("waiting for the agent: GET /v1/audit ... 1 s")
            terminal.read_until("did not answer within 1.4 s")
            assert terminal.process.wait(10) == ExitCode.UNREACHABLE
            assert "\r\x1b[K" in terminal.text.rpartition("waiting for")[2]
