"""One claim, step by step: choose and reserve, journal the intent, write to placement, journal the result.

The caller has its turn at the consumer, so nothing else happens to it meanwhile. No request is made while the
register's lock is held.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from agent.backoff import pause
from agent.claims.claim import Claim, ClaimState, ClaimStep, Shortfall
from agent.claims.parse_request import ClaimRequest
from agent.claims.refusal import does_not_fit, label, not_covered_conflict
from agent.errors import (
    DoesNotFit,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    PlimsollError,
    StateError,
)
from agent.moves.ownership import separate_allocations, split_allocations
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tracker.late_answers import may_come_late
from agent.tracker.register import Register

ATTEMPTS_MAX = 8
UNSEEN = 0


def expected_generation(conflict: PlacementConflict, tried: int | None) -> int | None:
    """The generation to write a consumer with, that holds nothing one can see, after that conflict.

    OpenStack Placement keeps a record, at generation 0, of a consumer that was emptied before it held
    anything: nobody can see it, and it bars the first claim unless that names it. The conflict tells. Of a
    lost race at a provider, or of another consumer, it says something else, and the same is tried again.
    """
    told = conflict.details.get("expected_generation", tried)
    return told if told in (None, UNSEEN) else tried


def wanted(claim: Claim) -> ConsumerAllocations:
    """What placement shall hold for the claim, written as a consumer that it does not have yet."""
    request = claim.request
    who = (request.project_id, request.user_id, request.consumer_type)
    return ConsumerAllocations(claim.consumer, claim.allocations, None, *who)


def is_of(held: ConsumerAllocations, claim: Claim) -> bool:
    """Whether placement holds exactly what the claim wrote, or would have written."""
    request = claim.request
    return held.allocations == claim.allocations and (held.project_id, held.user_id) == (
        request.project_id,
        request.user_id,
    )


class ClaimAttempt:
    """One attempt at one request; `run` once.

    `leftover` is the intent of an earlier attempt of which nobody knows what became: it is tried as it is.
    `late`: and it may be done yet. Then nothing else is chosen, by which alone it could be known when it is
    done, and it stays in doubt.
    """

    def __init__(
        self,
        register: Register,
        client: PlacementClient,
        clock: Callable[[], float],
        request: ClaimRequest,
        leftover: Claim | None = None,
        *,
        late: bool = False,
    ) -> None:
        self._register = register
        self._client = client
        self._clock = clock
        self._request = request
        self._consumer = request.consumer
        self._leftover = leftover
        self._late = late
        self.came = False
        """The leftover was found done, by the attempt that it was left by."""
        self._in_doubt = leftover is not None
        self._generation: int | None = None

    def run(self) -> Claim:
        """The claim, in placement and on disk.

        Raises DoesNotFit, ClaimConflict, PlacementError, StateError, UsageError; the consumer has no claim
        then, unless it is in doubt what placement holds: then the intent stays, to be resolved later.
        """
        try:
            return self._run()
        except PlimsollError as error:
            if not self._in_doubt and not self._late:
                self._undo(error)
            raise

    def _run(self) -> Claim:
        intent = self._leftover
        failure: PlimsollError | None = None
        for attempt in range(ATTEMPTS_MAX):
            suspects: Collection[str] = ()
            try:
                if intent is None or (attempt > 0 and not self._late):
                    intent = self._reserve()
                return self._write(intent)
            except PlacementConflict as conflict:
                failure = conflict
                pause(attempt)
            except PlacementFull as full:
                on = intent.allocations if intent else {}
                suspects = [uuid for uuid in on if uuid in full.message] or on  # it names the full one
                failure = self._refused_by_placement(intent, full)
                self._read_again(suspects)  # it took the consumer for new, so that holds nothing
                if self._late:
                    break
                continue
            except DoesNotFit as short:
                suspects = {each["provider_uuid"] for each in short.details["shortfalls"]}
                if isinstance(failure, DoesNotFit) or not self._register.may_be_stale(suspects):
                    raise
                failure = short
            held = self._client.allocations_of(self._consumer)
            if held.allocations:
                return self._adopt(held)
            self._read_again(suspects)
        raise failure or PlacementConflict(f"The claim of {label(self._request)} came to no end.")

    # Step 1: choose, reserve, journal the intent

    def _reserve(self) -> Claim:
        """Raises DoesNotFit; PlacementConflict where the consumer is known to hold something already."""
        with self._register.lock:
            ledger = self._register.ledger
            if ledger.other_allocations(self._consumer):
                raise PlacementConflict(f"{label(self._request)} already holds something in placement.")
            found = ledger.fit(self._request)
            if not found.fits:
                raise does_not_fit(self._request, found.shortfalls)
            before = ledger.claims.get(self._consumer)
            intent = Claim(
                self._consumer,
                ClaimState.CLAIMING,
                self._request,
                found.allocations,
                found.units,
                self._clock(),
                cells=found.cells,
                makings=found.makings,
            )
            written = self._register.move(ClaimStep.BEGIN, self._consumer, intent)
        self._register.settle(written, self._consumer, before)
        return intent

    def _read_again(self, suspects: Collection[str]) -> None:
        """Learn who holds what on these providers; the consumer itself is known to hold nothing."""
        found = {uuid: self._client.provider_allocations(uuid).consumers for uuid in suspects if uuid}
        with self._register.lock:
            ledger = self._register.ledger
            if self._consumer not in ledger.claims:
                ledger.set_other(self._consumer, {})
            for uuid, consumers in found.items():
                ledger.observe_provider(uuid, consumers)

    # Step 2: write to placement

    def _write(self, intent: Claim) -> Claim:
        self._in_doubt = True
        try:
            self._client.write_allocations(replace(wanted(intent), generation=self._generation))
        except PlacementUnavailable as error:
            return self._after_silence(intent, error)
        except PlacementError as error:
            if isinstance(error, PlacementConflict):
                self._generation = expected_generation(error, self._generation)
            self._in_doubt = False  # it answered, so it knows, and it has written nothing
            raise
        return self._grant(intent)

    def _after_silence(self, intent: Claim, error: PlacementUnavailable) -> Claim:
        """Placement did not answer the write: one read decides, if that is answered."""
        told = {key: error.details[key] for key in ("retry_after", "busy") if key in error.details}
        try:
            if "retry_after" in told:
                raise error  # it asks not to be asked again so soon
            held = self._client.allocations_of(self._consumer)
            if not held.allocations and may_come_late(error):
                raise error
        except PlacementUnavailable as again:
            raise PlacementUnavailable(
                f"Placement did not answer the claim of {label(self._request)}, and what it did is not "
                "known yet: the resources stay reserved until it answers, then the claim is undone. "
                f"({error.message})",
                status=error.status,
                placement_code=error.placement_code,
                **told,
            ) from again
        if is_of(held, intent):
            return self._grant(intent)
        self._in_doubt = False
        if held.allocations:
            return self._adopt(held)
        raise PlacementUnavailable(
            f"Placement did not answer the claim of {label(self._request)} and holds nothing of it: "
            f"try again. ({error.message})",
            status=error.status,
            placement_code=error.placement_code,
        ) from error

    def _refused_by_placement(self, intent: Claim | None, full: PlacementFull) -> DoesNotFit:
        """By our numbers it fits: tell them, and what placement says."""
        with self._register.lock:
            ledger = self._register.ledger
            names = {provider.uuid: provider.name for provider in ledger.host.providers}
            shortfalls = [
                Shortfall(
                    name, asked, free, names.get(uuid, uuid), uuid, f"placement refuses: {full.message}"
                )
                for uuid, amounts in (intent.allocations if intent else {}).items()
                for name, asked in amounts.items()
                for free in (ledger.free(uuid, name, self._consumer),)
            ]
        return does_not_fit(self._request, shortfalls)

    # Step 3: journal the result

    def _grant(self, intent: Claim) -> Claim:
        self._register.move_durably(ClaimStep.GRANT, self._consumer)
        self._in_doubt = False
        return replace(intent, state=ClaimState.CLAIMED)

    def _adopt(self, held: ConsumerAllocations) -> Claim:
        """Take over what somebody else wrote for the consumer. Raises ClaimConflict, DoesNotFit (units)."""
        if self._leftover is not None and is_of(held, self._leftover):
            self.came = True
            return self._grant(self._leftover)
        with self._register.lock:
            ledger = self._register.ledger
            mine = self._part_here(held.allocations)
            found = ledger.cover(self._request, mine, exact=False)
            if not found.fits:
                raise not_covered_conflict(
                    self._request, held.allocations, found.shortfalls, ledger.host.tree
                )
            found = ledger.cover(self._request, mine, exact=True)
            if not found.fits:
                raise does_not_fit(self._request, found.shortfalls)
            before = ledger.claims.get(self._consumer)
            claim = Claim(
                self._consumer,
                ClaimState.CLAIMED,
                self._request,
                found.allocations,
                found.units,
                self._clock(),
                adopted=True,
                cells=found.cells,
                makings=found.makings,
            )
            written = self._register.move(ClaimStep.ADOPT, self._consumer, claim)
        self._register.settle(written, self._consumer, before)
        return claim

    def _part_here(self, held: Allocations) -> Allocations:
        """All of it; of a doubled allocation this host's part, and what is shared once. Under the lock."""
        host = self._register.ledger.host
        shared = {provider.uuid for provider in host.providers if not host.is_own(provider.uuid)}
        found = split_allocations(held, host.is_own, shared.__contains__)
        return separate_allocations(found, self._request.resources)[0] if found.doubled else held

    def _undo(self, error: PlimsollError) -> None:
        with self._register.lock:
            intended = self._register.state_of(self._consumer) is ClaimState.CLAIMING
        if intended:
            try:
                self._register.move_durably(ClaimStep.REFUSE, self._consumer, detail=error.message)
            except StateError as unwritten:
                error.add_note(f"The intent could not be taken back either: {unwritten.message}")
