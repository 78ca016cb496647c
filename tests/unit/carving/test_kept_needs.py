"""A file that is kept for a process of root: when it is written, and what is told of one that cannot be."""

import logging
from itertools import pairwise

import pytest

from agent.backoff import BUSY_MAX_S, Backoff
from agent.carving.files import KeptNeeds
from agent.errors import StateError


class File:
    """A file that may fail, and what was written to it."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.fault: str | None = None
        self.now = 0.0

    def read(self) -> int | None:
        return self.written[-1] if self.written else None

    def write(self, needs: int) -> None:
        if self.fault is not None:
            raise StateError(self.fault)
        self.written.append(needs)


@pytest.fixture
def file() -> File:
    return File()


@pytest.fixture
def kept(file: File) -> KeptNeeds[int]:
    backoff = Backoff(clock=lambda: file.now, uniform=lambda _, high: high)
    return KeptNeeds(file.read, file.write, backoff)


def test_only_what_differs_is_written_and_nothing_where_it_is_unknown(
    file: File, kept: KeptNeeds[int]
) -> None:
    for needs in (1, 1, 2, 2):
        kept.keep(lambda _, needs=needs: (needs, lambda: True))
    kept.keep(lambda _: None)
    assert file.written == [1, 2]


def test_what_is_not_there_is_asked_for_again_ever_more_seldom(file: File, kept: KeptNeeds[int]) -> None:
    at = []
    for second in range(int(BUSY_MAX_S) * 4):
        file.now = float(second)
        before = len(file.written)
        kept.keep(lambda _: (1, lambda: False))
        if len(file.written) > before:
            at.append(second)
    pauses = [later - earlier for earlier, later in pairwise(at[1:])]
    assert len(pauses) > 3 and pauses == sorted(pauses) and pauses[-1] <= BUSY_MAX_S + 1
    kept.keep(lambda _: (1, lambda: True))
    before = len(file.written)
    file.now += 1
    kept.keep(lambda _: (1, lambda: False))
    assert len(file.written) == before + 1, "it was there: the waiting begins anew"


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(
    file: File, kept: KeptNeeds[int], caplog: pytest.LogCaptureFixture
) -> None:
    file.fault = "the disk is full"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kept.keep(lambda _: (1, lambda: True))
    assert caplog.messages == ["the disk is full"]
    file.fault = None
    kept.keep(lambda _: (1, lambda: True))
    assert file.written == [1]
