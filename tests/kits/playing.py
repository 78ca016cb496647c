"""The Ansible collection as an operator uses it: plays on a host of the tests, by ansible-core."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kits.doc_commands import DEADLINE_S

COLLECTIONS = Path(os.environ.get("PLIMSOLL_TEST_COLLECTIONS", "/nonexistent"))
"""Where `./dev test-ansible` installed the artefact."""


def ansible(
    program: str, *words: str, environment: Mapping[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """A program of ansible-core. It ends with `code`."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *words],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": os.environ["HOME"],
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done


class Agent(Protocol):
    """The agent of the host on which a play runs."""

    @property
    def directory(self) -> Path: ...
    @property
    def socket(self) -> Path: ...


def play(
    agent: Agent,
    *tasks: Mapping[str, Mapping[str, Any]],
    check: bool = False,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The results of the tasks, each {module: options}, one after the other also where one fails."""
    results = agent.directory / "results.json"
    steps: list[dict[str, Any]] = [
        {f"plimsoll.host.{name}": options, "register": f"r{number}", "ignore_errors": True}
        for number, task in enumerate(tasks)
        for name, options in task.items()
    ]
    content = f"{{{{ [{', '.join(step['register'] for step in steps)}] | to_json }}}}"
    steps.append({"ansible.builtin.copy": {"dest": str(results), "content": content}, "check_mode": False})
    playbook(
        [{"hosts": "localhost", "gather_facts": False, "tasks": steps}], agent, check, python, environment
    )
    found: list[dict[str, Any]] = json.loads(results.read_text())
    return found


def playbook(
    plays: object,
    agent: Agent,
    check: bool = False,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What `ansible-playbook` prints; the only host, `localhost`, is also in the group `hypervisors`."""
    book, hosts = agent.directory / "play.json", agent.directory / "hosts"
    book.write_text(json.dumps(plays))  # which is YAML, too
    own = f"ansible_connection=local ansible_become=false ansible_python_interpreter={python}"
    hosts.write_text(f"[hypervisors]\nlocalhost {own}\n")
    words = ["-i", str(hosts), *(["--check", "--diff"] if check else []), str(book)]
    told = {"PLIMSOLL_SOCKET": str(agent.socket), **(environment or {})}
    return ansible("ansible-playbook", *words, environment=told).stdout
