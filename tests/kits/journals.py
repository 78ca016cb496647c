"""A journal in PostgreSQL for a test; PLIMSOLL_TEST_JOURNAL is its DSN (`./dev test-fleet`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

DSN = os.environ.get("PLIMSOLL_TEST_JOURNAL", "")
NEEDS_POSTGRESQL = pytest.mark.skipif(not DSN, reason="./dev test-fleet starts PostgreSQL")
PATIENCE_S = 30
END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
"""Ends the session of the active server."""


@contextmanager
def fresh_journal() -> Iterator[str]:
    """A DSN for which there are no tables yet."""
    import psycopg

    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS plimsoll_writer, plimsoll_journal")
        yield DSN


def until(done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait until it is so."""
    end = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.01)
