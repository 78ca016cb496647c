"""Claims whose guests hold other units than those that were to be made for them.

Whoever starts a guest may have made a mediated device with a uuid of his own. Then the guest has what it
claimed, by another name, and the claim follows; else both would count.
"""

from collections.abc import Iterator
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState, Step
from agent.claims.ledger import Ledger
from agent.claims.register import Register
from agent.claims.turns import Turns


def follow_guests(register: Register, turns: Turns) -> None:
    """Let claims have the units that their guests hold; on disk, too. Takes the register's lock.

    A consumer at which an operation is under way is left for the next time. Raises StateError.
    """
    with register.lock:
        consumers = [now.consumer for now, _ in _found(register.ledger)]
    with turns.of_idle(consumers) as mine:
        with register.lock:
            steps = [
                (register.move(Step.FOUND, now.consumer, now), now.consumer, before)
                for now, before in list(_found(register.ledger))
                if now.consumer in mine and register.move_of(now.consumer) is None
            ]
        for written, consumer, before in steps:
            register.settle(written, consumer, before)


def _found(ledger: Ledger) -> Iterator[tuple[Claim, Claim]]:
    """(the claim as it shall be, as it is)"""
    for claim in ledger.claims.values():
        if claim.makings and claim.state is ClaimState.CLAIMED:
            instead = ledger.instead_of_makings(claim)
            if instead:
                units = {
                    uuid: {
                        name: tuple(instead.get(unit, unit) for unit in exact)
                        for name, exact in classes.items()
                    }
                    for uuid, classes in claim.units.items()
                }
                makings = {unit: each for unit, each in claim.makings.items() if unit not in instead}
                yield replace(claim, units=units, makings=makings), claim
