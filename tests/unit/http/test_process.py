"""A long computation lets the other threads run; and how many file descriptors the agent takes, and what it
says where they are too few.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.errors import StateError
from agent.http import process
from agent.http.process import (
    DESCRIPTORS_MIN,
    long_computation,
    take_all_descriptors,
    without_collection,
)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.enable()


def test_threads_change_more_often_while_any_of_them_computes() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(ValueError), without_collection():
        with long_computation():
            assert sys.getswitchinterval() < 0.001
        assert sys.getswitchinterval() < 0.001
        raise ValueError
    assert sys.getswitchinterval() == before


def test_cycles_are_searched_again_after_the_last_block() -> None:
    with without_collection():
        with pytest.raises(ValueError), without_collection():
            raise ValueError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_blocks_that_overlap_for_ever_do_not_prevent_every_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with without_collection():
        monkeypatch.setattr(process, "PAUSED_MAX_S", -1.0)
        with without_collection():
            assert gc.isenabled()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limit of this process, the last one; it begins with (1024, 4096)."""
    limits = [(1024, 4096)]
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(process.resource, "setrlimit", lambda _, pair: limits.append(pair))
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
