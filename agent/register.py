"""The one place where a claim changes its state: in memory and in the journal together, under one lock."""

import threading
from dataclasses import replace

from agent.claim import TRANSITIONS, Claim, ClaimState, Step
from agent.errors import StateError
from agent.journal import Journal, Written
from agent.ledger import Ledger


class Register:
    """`lock` guards `ledger`; no request is made while it is held. Raises StateError if made from a journal
    that cannot be read."""

    def __init__(self, journal: Journal) -> None:
        self.lock = threading.Lock()
        self.journal = journal
        self.ledger = Ledger(journal.claims().values())

    def state_of(self, consumer: str) -> ClaimState | None:
        """The caller holds the lock."""
        claim = self.ledger.claims.get(consumer)
        return claim.state if claim else None

    def move(self, step: Step, consumer: str, claim: Claim | None = None, detail: str = "") -> Written:
        """Take the step, with another claim than the present one if it is given. The caller holds the lock.

        In memory it is done at once; on disk when the answer's `wait` returns. Raises StateError where the
        journal refuses, or the table of transitions does not have the step; nothing is changed then.
        """
        present = self.ledger.claims.get(consumer)
        key = (present.state if present else None, step)
        if key not in TRANSITIONS:
            raise StateError(f"The claim of {consumer} cannot {step} while it is {key[0] or 'not there'}.")
        after = TRANSITIONS[key]
        chosen = claim or present
        if after is None or chosen is None:
            written = self.journal.remove(consumer, step, detail)
            self.ledger.drop(consumer)
        elif claim is None:
            written = self.journal.set_state(consumer, after, step, detail)
            self.ledger.put(replace(chosen, state=after))
        else:
            chosen = replace(chosen, state=after)
            written = self.journal.put(chosen, step, detail)
            self.ledger.put(chosen)
        return written

    def move_durably(self, step: Step, consumer: str, claim: Claim | None = None, detail: str = "") -> None:
        """`move`, and wait for the disk; the caller does not hold the lock, and has its turn at the consumer.

        Raises StateError: then the claim is in memory what it was before, as it is on disk.
        """
        with self.lock:
            before = self.ledger.claims.get(consumer)
            written = self.move(step, consumer, claim, detail)
        self.settle(written, consumer, before)

    def settle(self, written: Written, consumer: str, before: Claim | None) -> None:
        """Wait for the disk; if it fails, memory goes back to what was before. Raises StateError."""
        try:
            written.wait()
        except StateError:
            with self.lock:
                if before is None:
                    self.ledger.drop(consumer)
                else:
                    self.ledger.put(before)
            raise
