"""The note of a host: what the agent sends is what a server takes, however long its sentences are."""

from dataclasses import fields, replace

from agent.codec import decode, encode
from agent.placement.embedded import fleet, validation
from agent.placement.embedded.validation import validate
from agent.placement.host_note import NOTE_BYTES_MAX, HostNote, MoveNote

MOVE = MoveNote("11111111-1111-4111-8111-111111111111", "vm", "live", "source", "moving")
FULL = HostNote(
    "degraded",
    "0.1.0",
    ("Placement does not answer.",),
    "Placement does not answer",
    True,
    False,
    {"leaked_claim": 2},
    (MOVE,),
    ("0000:84:00.0 is cordoned.",),
    {"VGPU": 3},
    7,
    "The reshape is postponed.",
    {"PGPU": 1},
)


def test_a_server_keeps_all_fields_of_a_note() -> None:
    record = encode(HostNote, FULL)
    assert all(getattr(FULL, field.name) != field.default for field in fields(HostNote))
    assert validate(validation.PUT_NOTE, 39, record, "body") == record
    assert decode(HostNote, record) == FULL


def test_a_server_takes_the_note_of_a_host_on_which_everything_is_wrong() -> None:
    hostile = "\U0001f4a5\x1b[2J" * 40
    many = replace(
        FULL,
        reasons=(hostile * 100,) * 300,
        closed=hostile * 100,
        reshape=hostile * 100,
        moves=(replace(MOVE, name=hostile[:200]),) * 500,
        cordons=(hostile,) * 100,
    )
    note = many.bounded()
    assert fleet.NOTE_BYTES_MAX == NOTE_BYTES_MAX
    validate(validation.PUT_NOTE, 39, encode(HostNote, note), "body")
    assert note.reasons and note.moves and note.cordons
    assert note.left_out - 7 == 900 - sum(map(len, (note.reasons, note.moves, note.cordons)))
    assert FULL.bounded() == FULL
