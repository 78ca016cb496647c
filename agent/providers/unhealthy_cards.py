"""One sentence for a card of which several functions are not well, instead of one for each function. Pure."""

from collections.abc import Iterator, Mapping

from agent.errors import counted
from agent.providers.device_health import MEANINGS, DeviceHealth, HealthState, Symptom

HOLDERS_SHOWN_MAX = 8


def unhealthy_sentences(
    unhealthy: Mapping[str, DeviceHealth], cards: Mapping[str, str], holders: Mapping[str, str]
) -> Iterator[str]:
    """What is not well, and who has it: a sentence for each card, or device that is no part of one.

    `unhealthy` {address: health}; `cards` {address of a function: address of its card} of all functions of
    the host; `holders` {address: consumer that has it, as people know it}.
    """
    by_card: dict[str, list[DeviceHealth]] = {}
    for address, health in unhealthy.items():
        by_card.setdefault(cards.get(address, address), []).append(health)
    for card, found in by_card.items():
        if len(found) == 1:
            yield found[0].sentence
        else:
            functions = [address for address, of in cards.items() if of == card and address != card]
            yield _of_card(card, found, len(functions), holders)


def _of_card(card: str, found: list[DeviceHealth], functions: int, holders: Mapping[str, str]) -> str:
    sick = sorted(health.address for health in found if health.address != card)
    all_functions = counted(functions, "function")
    subject = (
        f"The card {card} is unhealthy, with {len(sick)} of its {all_functions}"
        if len(sick) < len(found)
        else f"{len(sick)} of the {all_functions} of the card {card} are unhealthy"
    )
    causes = frozenset().union(*(health.causes for health in found))
    reason = "; ".join(MEANINGS[symptom] for symptom in Symptom if symptom in causes)
    recovers = all(health.state is HealthState.RECOVERING for health in found)
    recovering = " They show none of that now." if recovers else ""
    return (
        f"{subject}: {reason}.{recovering} They are given to no guest; {_held(sick, holders)}. They are "
        f"offered again when they are well, or by `plimsoll devices clear {card}`."
    )


def _held(addresses: list[str], holders: Mapping[str, str]) -> str:
    held: dict[str, list[str]] = {}
    for address in addresses:
        if address in holders:
            held.setdefault(holders[address], []).append(address)
    if not held:
        return "no guest has any"
    clauses = [f"{holder} has {', '.join(units)}" for holder, units in sorted(held.items())]
    more = len(clauses) - HOLDERS_SHOWN_MAX
    if more > 0:
        clauses[HOLDERS_SHOWN_MAX:] = [counted(more, "more guest has some", "more guests have some")]
    return f"the guests that have some keep them ({'; '.join(clauses)})"
