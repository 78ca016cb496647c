"""The state machine: random programs of requests, sent to both sides, answer by answer compared."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from .exchange import Answer, Request
from .known import known_difference
from .oracle import compared
from .protocol import odd_requests, odd_texts
from .reads import candidate_reads, list_reads, single_reads
from .reference import Reference
from .subject import Subject
from .vocabulary import CONSUMERS, CUSTOM_CLASSES, CUSTOM_TRAITS, PROVIDERS, aggregate_sets, kinds, rarely
from .world import World
from .writes import (
    allocation_writes,
    inventory_writes,
    label_writes,
    name_writes,
    ownership,
    provider_writes,
    reshapes,
)

_WHOLE_PROVIDER = ("/inventories", "/usages", "/allocations", "/aggregates", "/traits")


class Differential(RuleBasedStateMachine):
    """Both sides are told the same, and must answer the same.

    `tally` counts, over all programs of this process, requests, answers by status, and known differences.
    """

    tally: ClassVar[Counter[str]] = Counter()
    through_door: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.reference = Reference()
        self.subject = Subject(self.through_door)
        self.world = World(self.subject)
        self.candidates: list[dict[str, Any]] = []
        self.agreed = True

    def send(self, request: Request) -> Answer:
        """Send to both and compare; returns our answer.

        :raises AssertionError: with request and answers, when they differ and are not meant to
        """
        theirs, ours = self.reference.ask(request), self.subject.ask(request)
        self.tally["requests"] += 1
        self.tally[f"asked {request.method} /{request.path[1:].partition('?')[0].partition('/')[0]}"] += 1
        self.tally[f"answers {theirs.status}"] += 1
        verdict = compared(request, theirs, ours, self.reference, self.subject)
        known = set(verdict.known)
        if verdict.wrong:
            name = known_difference(request, theirs, ours, verdict.wrong.keys())
            self.agreed = name is not None
            wrong = "\n  ".join(f"{place}: {what}" for place, what in verdict.wrong.items())
            assert name is not None, f"{request}\n  {wrong}\n  theirs: {theirs.body}\n  ours: {ours.body}"
            known.add(name)
        self.tally.update(f"difference {name}" for name in known)
        return ours

    @initialize(data=st.data())
    def make_names(self, data: st.DataObject) -> None:
        """Custom classes and traits that all programs use, then a forest of providers."""
        for name in CUSTOM_CLASSES:
            self.send(Request("PUT", f"/resource_classes/{name}"))
        for name in CUSTOM_TRAITS:
            self.send(Request("PUT", f"/traits/{name}"))
        for number in range(data.draw(st.integers(5, 10), "providers")):
            self._make_provider(data, number)

    def _make_provider(self, data: st.DataObject, number: int) -> None:
        uuid = PROVIDERS[number]
        body: dict[str, Any] = {"uuid": uuid, "name": f"host{number}"}
        if number and not data.draw(rarely(3), "is a root"):
            body["parent_provider_uuid"] = PROVIDERS[data.draw(st.integers(0, number - 1), "parent")]
        self.send(Request("POST", "/resource_providers", body))
        records, labels = data.draw(kinds(), "inventories and traits")
        shared = data.draw(aggregate_sets, "aggregates")
        base = f"/resource_providers/{uuid}"
        for generation, (below, key, value) in enumerate(
            (
                ("aggregates", "aggregates", shared),
                ("inventories", "inventories", records),
                ("traits", "traits", labels),
            )
        ):
            self.send(
                Request("PUT", f"{base}/{below}", {key: value, "resource_provider_generation": generation})
            )

    @rule(data=st.data())
    def write_provider(self, data: st.DataObject) -> None:
        self.send(data.draw(provider_writes(self.world)))

    @rule(data=st.data())
    def write_inventory(self, data: st.DataObject) -> None:
        self.send(data.draw(inventory_writes(self.world)))

    @rule(data=st.data())
    def write_labels(self, data: st.DataObject) -> None:
        self.send(data.draw(label_writes(self.world)))

    @rule(data=st.data())
    def write_names(self, data: st.DataObject) -> None:
        self.send(data.draw(name_writes(self.world)))

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        self.send(data.draw(allocation_writes(self.world)))

    @rule(data=st.data())
    def reshape(self, data: st.DataObject) -> None:
        self.send(data.draw(reshapes(self.world)))

    @rule(data=st.data())
    def read_one(self, data: st.DataObject) -> None:
        self.send(data.draw(single_reads(self.world)))

    @rule(data=st.data())
    def read_list(self, data: st.DataObject) -> None:
        self.send(data.draw(list_reads(self.world)))

    @rule(data=st.data())
    def find_candidates(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 5), "queries")):
            request = data.draw(candidate_reads(self.world))
            answer = self.send(request)
            if answer.status == 200 and request.microversion == "1.39":
                self.candidates = answer.body["allocation_requests"][:8]

    @rule(data=st.data())
    def claim_candidate(self, data: st.DataObject) -> None:
        """What candidates offer can be claimed as it is."""
        if not self.candidates:
            return
        consumer = data.draw(st.sampled_from(CONSUMERS))
        body = data.draw(st.sampled_from(self.candidates)) | data.draw(ownership(self.world, consumer, 39))
        self.send(Request("PUT", f"/allocations/{consumer}", body))

    @rule(data=st.data())
    def ask_oddly(self, data: st.DataObject) -> None:
        self.send(data.draw(odd_requests()))

    def teardown(self) -> None:
        """Whatever the program did, both sides hold the same in the end."""
        try:
            if self.agreed:
                self.compare_state()
        finally:
            self.subject.close()

    def compare_state(self) -> None:
        """Read everything from both."""
        self.send(Request("GET", "/resource_providers"))
        for provider in self.world.providers():
            for below in _WHOLE_PROVIDER:
                self.send(Request("GET", f"/resource_providers/{provider['uuid']}{below}"))
        for consumer in CONSUMERS:
            self.send(Request("GET", f"/allocations/{consumer}"))
        for path in ("/resource_classes", "/traits?name=startswith:CUSTOM", "/usages?project_id=p1"):
            self.send(Request("GET", path))


class DifferentialCandidates(Differential):
    """The same with most of the questions about candidates, which have the most to go wrong."""

    @rule(data=st.data())
    def find_many_candidates(self, data: st.DataObject) -> None:
        for _ in range(15):
            answer = self.send(data.draw(candidate_reads(self.world)))
            if answer.status == 200 and answer.body["allocation_requests"]:
                self.tally["candidates found"] += 1


class DifferentialThroughDoor(Differential):
    """The same with our side asked through its WSGI door, so that text counts too."""

    through_door = True

    @rule(data=st.data())
    def ask_in_text(self, data: st.DataObject) -> None:
        self.send(data.draw(odd_texts()))
