"""The agent's metrics for Prometheus: counters and histograms, and gauges that are computed at each scrape.

Names and units follow https://prometheus.io/docs/practices/naming/. No guest, claim or caller chooses a
label's value: providers and resource classes are those of the host's own tree, all others are enumerated in
the code.
docs/seeing.md lists every metric; a test compares the two.
"""

import re
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.claims.claim import ClaimStep
from agent.moves.states import MoveKind
from agent.state.journal import RESHAPE_EVENT

FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SLOW_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
GRANTED = "granted"
NO_ANSWER = "none"
_CREATED = re.compile(rb"(# (HELP|TYPE) )?plimsoll_\w+_created\b")


class Metrics:
    """One agent's metrics, in a registry of its own. Any thread may count."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"plimsoll_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"plimsoll_{name}", text, labels, buckets=buckets, registry=registry)

        self.claim_requests = counter(
            "claim_requests", "Claim requests; outcome is granted, or the error's code.", "outcome"
        )
        self.claim_seconds = histogram(
            "claim_duration_seconds", "From a claim's request to its answer, granted or not.", FAST_S
        )
        self.claim_steps = counter("claim_steps", "Steps in the lives of claims.", "step")
        self.move_requests = counter(
            "move_requests",
            "Requests to begin a move to this host; outcome is begun, or the error's code.",
            "kind",
            "outcome",
        )
        self.gate_requests = counter(
            "gate_requests",
            "Questions to the gate; outcome is the verdict's, or the error's code.",
            "outcome",
        )
        self.gate_seconds = histogram("gate_duration_seconds", "Duration of the gate's decisions.", FAST_S)
        self.move_steps = counter("move_steps", "Steps in the lives of moves.", "kind", "step")
        self.reshapes = counter("reshapes", "Reshapes that were done.")
        self.passes = counter("passes", "Passes; outcome is unchanged, changed or failed.", "outcome")
        self.pass_seconds = histogram("pass_duration_seconds", "Duration of passes.", SLOW_S)
        self.operations = counter("pass_operations", "Changes that passes made in Placement.")
        self.audits = counter("audits", "Audits; outcome is done or failed.", "outcome")
        self.healed = counter("healed_findings", "Findings of the audit that were healed.", "kind")
        self.placement_requests = counter(
            "placement_requests",
            "Requests to Placement; status is its HTTP status, none where no answer came.",
            "method",
            "status",
        )
        self.placement_seconds = histogram(
            "placement_request_duration_seconds", "Duration of Placement's answers.", FAST_S, "method"
        )
        self.commit_seconds = histogram(
            "commit_duration_seconds", "Duration of commits to the agent's own database.", FAST_S
        )
        self.claim_requests.labels(GRANTED)
        for step in ClaimStep:
            self.claim_steps.labels(step)
        for outcome in ("unchanged", "changed", "failed"):
            self.passes.labels(outcome)
        ProcessCollector(registry=registry)

    def count_step(self, step: str, kind: MoveKind | None) -> None:
        """Count a step of a claim, of a move (then `kind` is given), or a reshape."""
        if kind is not None:
            self.move_steps.labels(kind, step).inc()
        elif step == RESHAPE_EVENT:
            self.reshapes.inc()
        else:
            self.claim_steps.labels(step).inc()

    def collect_at_scrape(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Call `collect` at each scrape, for gauges."""
        self.registry.register(_ScrapeCollector(collect))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format, version 0.0.4.

        Without the `_created` series of each counter, since the process's start time tells the same. The
        library's switch for that differs between its versions, and applies to the whole process.
        """
        lines = generate_latest(self.registry).splitlines(keepends=True)
        return b"".join(line for line in lines if not _CREATED.match(line))


class _ScrapeCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry collects once, to learn the names
