"""A card that dies is one reason, with the number of its functions and who has them."""

from agent.providers.device_health import (
    HOLDERS_SHOWN_MAX,
    DeviceHealth,
    HealthState,
    Symptom,
    unhealthy_sentences,
)

CARD = "0000:41:00.0"
FUNCTIONS = [f"0000:41:10.{number}" for number in range(8)]
CARDS = dict.fromkeys(FUNCTIONS, CARD)
GPU = "0000:83:00.0"


def sick(*addresses: str, state: HealthState = HealthState.UNHEALTHY) -> dict[str, DeviceHealth]:
    causes = frozenset({Symptom.NO_ANSWER})
    return {address: DeviceHealth(address, state, causes=causes) for address in addresses}


def test_a_dead_card_is_one_sentence_and_another_device_another() -> None:
    unhealthy = sick(CARD, *FUNCTIONS, GPU)
    holders = {FUNCTIONS[0]: "web1 (u1)", FUNCTIONS[3]: "web1 (u1)", FUNCTIONS[5]: "db1 (u2)"}
    card, gpu = unhealthy_sentences(unhealthy, CARDS, holders)
    assert card.startswith(f"The card {CARD} is unhealthy, with 8 of its 8 functions: it is not on the bus")
    assert f"(db1 (u2) has {FUNCTIONS[5]}; web1 (u1) has {FUNCTIONS[0]}, {FUNCTIONS[3]})" in card
    assert f"`plimsoll devices clear {CARD}`" in card
    assert gpu == unhealthy[GPU].sentence


def test_functions_of_a_card_that_is_well_itself() -> None:
    (said,) = unhealthy_sentences(sick(*FUNCTIONS[:2]), CARDS, {})
    assert f"2 of the 8 functions of the card {CARD} are unhealthy" in said
    assert "no guest has any" in said


def test_one_function_alone_is_told_by_its_own_address() -> None:
    unhealthy = sick(FUNCTIONS[2])
    assert list(unhealthy_sentences(unhealthy, CARDS, {})) == [unhealthy[FUNCTIONS[2]].sentence]


def test_a_card_whose_symptoms_have_gone_says_so() -> None:
    recovering = sick(*FUNCTIONS[:3], state=HealthState.RECOVERING)
    assert "show none of that now" in next(unhealthy_sentences(recovering, CARDS, {}))
    mixed = {**recovering, **sick(FUNCTIONS[5])}
    assert "show none of that now" not in next(unhealthy_sentences(mixed, CARDS, {}))


def test_many_holders_are_counted() -> None:
    many = [f"0000:41:{slot:02x}.0" for slot in range(1, HOLDERS_SHOWN_MAX + 3)]
    holders = {address: f"guest{number}" for number, address in enumerate(many)}
    (said,) = unhealthy_sentences(sick(*many), dict.fromkeys(many, CARD), holders)
    assert "2 more guests have some" in said
