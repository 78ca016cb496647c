"""The note that a host's agent leaves at a served Placement, and what that server says of each host by it.

A Placement of OpenStack has no notes. Who asks for the fleet has then what Placement itself knows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

from agent.codec import encode
from agent.json_checks import read_text

NOTE_BYTES_MAX = 32 * 1024
"""What a server takes at most."""
TEXT_CHARS_MAX = 400
_Text = Annotated[str, partial(read_text, longest=NOTE_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class MoveNote:
    """A move under way: its instance, and the kind, role and state that `plimsoll moves` shows."""

    instance: str
    name: str
    kind: str
    role: str
    state: str


@dataclass(frozen=True, slots=True)
class HostNote:
    """How a host is, as its agent sees it.

    `state` is one of HostState, and `reasons` are sentences on why it is not ready or what to look at.
    `closed` is why claims are closed, None: they are open; `drains`: the instances are to leave;
    `schedulers`: they are offered the host. `findings` is {kind: number} of what the last audit left,
    `cordons` a sentence on each device that is withheld, `withheld` {class: units of these that no consumer
    has}. `reshape` is why a reshape that is due waits, None: none is due. `stranded` {class: free units that
    no guest can have, since no CPU or no memory is free near them}. `left_out` counts the moves and sentences
    for which the note had no room.
    """

    state: str
    version: str
    reasons: tuple[_Text, ...] = ()
    closed: _Text | None = None
    drains: bool = False
    schedulers: bool = True
    findings: Mapping[str, int] = field(default_factory=dict)
    moves: tuple[MoveNote, ...] = ()
    cordons: tuple[_Text, ...] = ()
    withheld: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0
    reshape: _Text | None = None
    stranded: Mapping[str, int] = field(default_factory=dict)

    def bounded(self) -> "HostNote":
        """The note with shorter sentences, and so many of them and of the moves as a server takes."""
        note = replace(
            self,
            reasons=tuple(each[:TEXT_CHARS_MAX] for each in self.reasons),
            closed=None if self.closed is None else self.closed[:TEXT_CHARS_MAX],
            reshape=None if self.reshape is None else self.reshape[:TEXT_CHARS_MAX],
            cordons=tuple(each[:TEXT_CHARS_MAX] for each in self.cordons),
        )
        while len(json.dumps(encode(HostNote, note))) > NOTE_BYTES_MAX:
            longest = max(("reasons", "moves", "cordons"), key=lambda name: len(getattr(note, name)))
            kept = getattr(note, longest)[: len(getattr(note, longest)) // 2]
            left_out = note.left_out + len(getattr(note, longest)) - len(kept)
            note = replace(note, left_out=left_out, **{longest: kept})
        return note


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a served Placement knows of a host beside its providers.

    `note` came `age_s` seconds ago, by the server's steady clock. `silent`: no note came for five minutes, so
    nothing tells that the host is still there.
    """

    uuid: str
    name: str
    note: HostNote | None = None
    age_s: float | None = None
    silent: bool = False
