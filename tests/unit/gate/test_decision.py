"""The words of the gate's outcomes are part of the local API and of the metrics."""

from agent.gate.decision import GateOutcome


def test_the_outcomes_keep_their_names() -> None:
    assert [outcome.value for outcome in GateOutcome] == ["claimed", "held", "moving", "noted", "ignored"]
