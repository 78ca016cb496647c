"""What the agents of the hosts say of themselves, beside what Placement's API has: a note for each host.

Notes are in memory alone. A server that starts, or takes over, has none until each agent has sent its own
again, within a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agent.placement.embedded.model import Model, ProviderRecord
from agent.placement.embedded.problems import TOO_LARGE, RequestRefused

NOTE_BYTES_MAX = 32 * 1024
HOSTS_MAX = 10_000
SILENT_AFTER_S = 300.0
"""A host is silent when its agent has left no note for so long; it leaves one a minute."""


class Heard(NamedTuple):
    """The newest note of a host, None where there is none, and how many seconds ago it came."""

    note: Mapping[str, Any] | None
    age_s: float | None
    silent: bool


class HostNotes:
    """The newest note of each host. Any thread may call; `clock` gives seconds of a steady clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notes: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._since = clock()

    def put(self, root_uuid: str, note: Mapping[str, Any], model: Model) -> None:
        """Keep the note in place of the host's last one. Raises RequestRefused where there are too many."""
        with self._lock:
            if root_uuid not in self._notes and len(self._notes) >= HOSTS_MAX:
                self._notes = {uuid: kept for uuid, kept in self._notes.items() if model.provider(uuid)}
                if len(self._notes) >= HOSTS_MAX:
                    raise RequestRefused(TOO_LARGE, f"This server keeps the notes of {HOSTS_MAX} hosts.")
            self._notes[root_uuid] = (self._clock(), note)

    def forget(self) -> None:
        """Forget all, as a server does that takes no writes: the notes go to another one."""
        with self._lock:
            self._notes, self._since = {}, self._clock()

    def heard(self, root_uuid: str) -> Heard:
        """What was heard of a host. One without a note is silent once it has had the time to leave one."""
        now = self._clock()
        at, note = self._notes.get(root_uuid, (self._since, None))
        return Heard(note, None if note is None else now - at, now - at >= SILENT_AFTER_S)


def hosts_of(model: Model) -> list[ProviderRecord]:
    """The root providers that are hosts, by name: those that are no shared pools."""
    with model.lock.reading():
        providers = list(model.providers.values())
    roots = (one for one in providers if one.parent_uuid is None and not one.is_sharing)
    return sorted(roots, key=lambda root: root.name)
