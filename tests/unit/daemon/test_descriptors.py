"""How many file descriptors the agent takes, and what it says where they are too few."""

import resource
import subprocess
import sys

import pytest

from agent.daemon import descriptors
from agent.daemon.descriptors import DESCRIPTORS_MIN, take_all_descriptors
from agent.errors import StateError


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limit of this process, the last one; it begins with (1024, 4096)."""
    limits = [(1024, 4096)]
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, pair: limits.append(pair))
    return limits


def test_the_soft_limit_becomes_the_hard_one(limits: list[tuple[int, int]]) -> None:
    take_all_descriptors()
    assert limits[-1] == (4096, 4096)


def test_too_few_are_one_sentence_with_the_remedy(limits: list[tuple[int, int]]) -> None:
    limits.append((8, DESCRIPTORS_MIN - 1))
    with pytest.raises(StateError, match=r"may open 31 files .* at least 32: raise LimitNOFILE"):
        take_all_descriptors()


@pytest.mark.parametrize("limit", [8, 16])
def test_an_agent_with_too_few_ends_at_once_and_says_so(limit: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "agent.cli.main", "agent", "--config-file", "/dev/null"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1 and f"may open {limit} files" in ended.stderr
