"""Which consumers and moves the audit reads in full: those that one observation makes suspicious. Pure.

To read everything that a consumer holds costs a request for each consumer. A healthy host has no suspects.
"""

from collections.abc import Iterator

from agent.audit.observation import Observation
from agent.claims.claim import ClaimState
from agent.moves.states import Move, MoveRole, MoveState


def suspects(observation: Observation) -> frozenset[str]:
    """The consumers whose guest, claim and allocation here do not agree.

    Of those in moves: the ones that have an allocation here, and another one than their claim.
    """
    consumers = observation.consumers | observation.claims.keys() | observation.guests.keys()
    moving = observation.consumers_in_moves
    return frozenset(
        consumer
        for consumer in consumers
        if (_is_suspect_in_move if consumer in moving else _is_suspect)(observation, consumer)
    )


def _is_suspect_in_move(observation: Observation, consumer: str) -> bool:
    claim = observation.claims.get(consumer)
    allocations = observation.allocations_here(consumer)
    return claim is not None and bool(allocations) and observation.own_part(claim.allocations) != allocations


def _is_suspect(observation: Observation, consumer: str) -> bool:
    claim = observation.claims.get(consumer)
    allocations = observation.allocations_here(consumer)
    if claim is None:
        return consumer not in observation.guests or not allocations
    return claim.state is not ClaimState.CLAIMED or observation.own_part(claim.allocations) != allocations


def suspect_moves(observation: Observation) -> Iterator[Move]:
    """The moves that may not end by themselves: another program may have ended or abandoned them."""
    return (move for move in observation.moves if _is_suspect_move(observation, move))


def _is_suspect_move(observation: Observation, move: Move) -> bool:
    if move.state is MoveState.LEAVING:
        return move.instance in observation.guests
    if move.state is not MoveState.BEGUN:
        return False
    if move.role is MoveRole.BOTH:
        return bool(move.handed) and not observation.allocations_here(move.migration)
    return move.role is MoveRole.SOURCE or (move.adopted and not observation.allocations_here(move.instance))
