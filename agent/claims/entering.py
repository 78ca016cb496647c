"""Where a request enters: devices asked for by alias become groups, once.

A request that is asked again gets the groups that it got the first time, though the configuration says
something else by now: so it is the same request, and has the same answer.
"""

from agent.claims.pci import Aliases, as_asked, with_devices
from agent.claims.register import Register
from agent.claims.request import ClaimRequest


def entered(request: ClaimRequest, aliases: Aliases, register: Register) -> ClaimRequest:
    """The request with a group for each device. Takes the register's lock.

    Raises UsageError for an alias that is not configured.
    """
    if not request.pci:
        return request
    with register.lock:
        ledger = register.ledger
        present, move = ledger.claims.get(request.consumer), register.move_of(request.consumer)
        for claim in (present, move.new if move else None):
            if claim is not None and as_asked(claim.request) == request:
                return claim.request
        return with_devices(request, aliases, ledger.host.tree, ledger.offered)
