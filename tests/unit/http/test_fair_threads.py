"""A long computation lets the other threads run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from agent.http import fair_threads
from agent.http.fair_threads import share_the_interpreter, without_collection


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.enable()


def test_threads_change_more_often_than_by_default() -> None:
    share_the_interpreter()
    assert sys.getswitchinterval() < 0.001


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
        monkeypatch.setattr(fair_threads, "PAUSED_MAX_S", -1.0)
        with without_collection():
            assert gc.isenabled()
