"""The grammar of `plimsoll move`."""

import argparse
from collections.abc import Callable

from agent.cli import moves

Adder = Callable[..., argparse.ArgumentParser]
"""Takes name, function, short help, text and examples."""

KINDS = ("cold-migrate", "resize", "same-host-resize", "live-migrate", "rebuild", "evacuate")
_INSTANCE = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
_MIGRATION = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def add_move_commands(
    add: Adder,
    verbs_of: Callable[[argparse.ArgumentParser], Adder],
    claim_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add `move` and its verbs; `claim_options` adds the options that say what is wanted."""
    group = add(
        "move",
        None,
        "move an instance: begin on the destination, confirm or revert, see who holds what",
        "While a move is under way the instance holds its new place, and the migration, a consumer with a\n"
        "uuid of its own, holds the old one. The two agents learn from placement what the other one did.",
        f"  plimsoll move begin {_INSTANCE} --kind cold-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move confirm {_MIGRATION}\n  plimsoll move list",
    )
    verbs = verbs_of(group)
    _begin(verbs, claim_options)
    _ends(verbs)
    _looks(verbs)


def _begin(verbs: Adder, claim_options: Callable[[argparse.ArgumentParser], None]) -> None:
    begin = verbs(
        "begin",
        moves.begin,
        "begin a move, on its destination",
        "Claims the new place on this host and hands the old one to the migration, in one atomic request.\n"
        "A resize of an instance that is on this host already, and a rebuild, stay on it. Say what is\n"
        "wanted as for `plimsoll claim`. A refusal (exit code 5) changes nothing.",
        f"  plimsoll move begin {_INSTANCE} --kind live-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move begin {_INSTANCE} --kind resize --flavor vcpus=4,memory_mb=8192",
    )
    begin.add_argument("consumer", metavar="INSTANCE", help="the instance's uuid")
    begin.add_argument("--kind", choices=KINDS, required=True, help="what kind of move")
    begin.add_argument(
        "--migration", metavar="UUID", help="the migration's uuid; without it a new one is made and printed"
    )
    claim_options(begin)


def _ends(verbs: Adder) -> None:
    for name, run, short, text in (
        (
            "confirm",
            moves.confirm,
            "the instance stays at the destination; the source is free",
            "May be asked on either side. At the source it waits until the guest is gone.",
        ),
        (
            "revert",
            moves.revert,
            "the instance has its old place again, with the same devices; the destination is free",
            "May be asked on either side. At the destination it waits until the guest is gone, so that\n"
            "nobody gets its place before it is clean.",
        ),
    ):
        end = verbs(
            name,
            run,
            short,
            f"{text} While placement is away it is journaled, and done later. The same again is no error.",
            f"  plimsoll move {name} {_MIGRATION}\n"
            f"  plimsoll move {name} {_MIGRATION} --instance {_INSTANCE}",
        )
        end.add_argument("migration", metavar="MIGRATION", help="the migration's uuid")
        end.add_argument(
            "--instance",
            metavar="UUID",
            help="whose migration it is, where the source cannot tell: two moves look the same",
        )


def _looks(verbs: Adder) -> None:
    show = verbs(
        "show",
        moves.show,
        "one move: who holds what, device by device",
        "What the migration holds on behalf of the move, and what the instance holds at the destination.",
        f"  plimsoll move show {_MIGRATION}\n  plimsoll move show {_MIGRATION} -o json | jq .old.units",
    )
    show.add_argument("migration", metavar="MIGRATION", help="the migration's uuid")
    listing = verbs(
        "list",
        moves.listed,
        "the moves under way that this host is part of",
        "What each migration holds is in the last column.",
        "  plimsoll move list\n  plimsoll move list --all -o json | jq '.moves[].state'",
    )
    listing.add_argument("--all", action="store_true", help="those too that ended lately")
