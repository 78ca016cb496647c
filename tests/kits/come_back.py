"""The ways in which an agent comes back after it was killed."""

from __future__ import annotations

from contextlib import suppress

from agent.errors import PlacementUnavailable
from kits.moves import Agent, World


def come_back(world: World, agent: Agent, how: str) -> None:
    agent.restart()
    if how == "away":
        with world.away(agent), suppress(PlacementUnavailable):
            agent.come_back()
        world.check()
    if how == "other":
        other = world.b if agent is world.a else world.a
        other.look()
        other.restart()
        other.come_back()
    agent.come_back()
    world.settle()


HOW = ("there", "away", "other")
