"""A PostgreSQL with a synchronous and an asynchronous replica, either of which may take over.

PLIMSOLL_TEST_PG is what runs PostgreSQL's programs, in a folder of its own (`./dev test-fleet`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from kits.journals import DSN, until

RUN = shlex.split(os.environ.get("PLIMSOLL_TEST_PG", ""))
SETTINGS = """
listen_addresses = '*'
wal_keep_size = 64MB
max_wal_size = 256MB
wal_retrieve_retry_interval = 100ms
"""
ISLANDS = "10.213.0.0/16"
SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"


class Cluster:
    """A PostgreSQL of its own, stopped."""

    def __init__(self, name: str) -> None:
        self._folder = conninfo_to_dict(DSN)["host"]
        self._data = f"{self._folder}/{name}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"host={self._folder} port={self.port} user=plimsoll dbname=postgres"

    def make(self, *more: str) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        usual = ["-A", "trust", "-U", "plimsoll", "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
        self._run("initdb", *usual, *more)
        with Path(self._data, "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        with Path(self._data, "pg_hba.conf").open("a") as rights:
            rights.write(f"host all all {ISLANDS} trust\n")

    def copy(self, primary: Cluster, name: str) -> None:
        """Be a replica of that name, and follow the primary."""
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)
        at = f"{primary.address} application_name={name}"
        self._run("pg_basebackup", "-R", "-c", "fast", "--no-sync", "-d", at)
        self.start()

    def start(self) -> None:
        self._pg_ctl("start", "-o", f"-p {self.port} -k {self._folder}")

    @contextmanager
    def with_a_small_disk(self, *, log: bool) -> Iterator[Callable[[], None]]:
        """It runs; the disk of its write-ahead log, or else of its tables, is small.

        What is called makes the disk larger. Needs root.
        """
        disk = Path(self._folder, "small")
        disk.mkdir()
        options = f"size={8 if log else 4}m,mode=0777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
        try:
            subprocess.run([*RUN, "mkdir", disk / "inner"], check=True)
            self.make(*(["--wal-segsize=1", f"--waldir={disk}/inner"] if log else []))
            self.start()
            if not log:
                self.ask(f"CREATE TABLESPACE small LOCATION '{disk}/inner'")
                self.ask("ALTER ROLE plimsoll SET default_tablespace = small")
            yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        finally:
            self.stop()
            subprocess.run(["umount", "-l", disk], check=True)
            disk.rmdir()

    def stop(self) -> None:
        """As if its machine had no power, where it runs."""
        if Path(self._data, "postmaster.pid").exists():
            with suppress(subprocess.CalledProcessError):  # it has ended by itself
                self._pg_ctl("stop", "-m", "immediate")

    def restart(self) -> None:
        self.stop()
        self.start()

    def promote(self) -> None:
        self.set(synchronous_standby_names="")
        self._pg_ctl("promote")

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self.ask(f"ALTER SYSTEM SET {name} = '{value}'")
        self.ask("SELECT pg_reload_conf()")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.address, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _pg_ctl(self, word: str, *more: str) -> None:
        self._run("pg_ctl", word, "-w", "-s", "-l", f"{self._data}.log", *more)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*RUN, program, "-D", self._data, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60
        )


class Replicas:
    """Three clusters: `primary`, `synchronous` and `asynchronous` say which is which now."""

    def __init__(self) -> None:
        self.primary, self.synchronous, self.asynchronous = self._all = [
            Cluster(f"replica{number}") for number in range(3)
        ]

    @contextmanager
    def running(self) -> Iterator[Replicas]:
        try:
            self.primary.make()
            self.primary.start()
            self.attach()
            yield self
        finally:
            for cluster in self._all:
                cluster.stop()

    def dsn(self, host: str | None = None) -> str:
        """All of them, by their Unix sockets or at that host."""
        ports = ",".join(str(cluster.port) for cluster in self._all)
        hosts = ",".join([host or conninfo_to_dict(DSN)["host"]] * len(self._all))
        return f"postgresql://plimsoll@/postgres?host={hosts}&port={ports}&target_session_attrs=read-write"

    def attach(self) -> None:
        """Copy the primary to both replicas, which follow it then."""
        self.synchronous.copy(self.primary, SYNCHRONOUS)
        self.asynchronous.copy(self.primary, ASYNCHRONOUS)
        self.primary.set(synchronous_standby_names=SYNCHRONOUS)
        states = "SELECT application_name, sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        until(lambda: {*self.primary.ask(states)} == {(SYNCHRONOUS, "sync"), (ASYNCHRONOUS, "async")})

    def promote_synchronous(self) -> None:
        """The primary is lost, and the replica that has all of its commits takes over."""
        self.primary.stop()
        self.synchronous.promote()
        self.primary, self.synchronous = self.synchronous, self.primary

    def leave_behind(self) -> None:
        """The asynchronous replica gets no more commits."""
        self.asynchronous.set(primary_conninfo="")
        until(lambda: not self.asynchronous.ask("SELECT FROM pg_stat_wal_receiver"))

    def promote_asynchronous(self) -> None:
        """The other two are lost."""
        self.primary.stop()
        self.synchronous.stop()
        self.asynchronous.promote()
        self.primary, self.asynchronous = self.asynchronous, self.primary

    @contextmanager
    def silent(self) -> Iterator[None]:
        """The synchronous replica is connected, and says nothing."""
        ((receiver,),) = self.synchronous.ask("SELECT pid FROM pg_stat_wal_receiver")
        os.kill(receiver, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(receiver, signal.SIGCONT)
