"""What requests to the local API name: devices to cordon, libvirt's hook, the parameters of the history."""

import pytest

from agent.api.routes import (
    LIMIT_DEFAULT,
    parse_history,
    parse_hook_call,
    read_clear_body,
    read_cordon_body,
)
from agent.errors import UsageError


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("0000:84:00.0/CUSTOM_VGPU_4@6", "0000:84:00.0/CUSTOM_VGPU_4@6"),
        ("0000:C1:00.2/nvidia-471@20", "0000:c1:00.2/nvidia-471@20"),
    ],
)
def test_a_device_is_named_as_the_list_shows_it_or_by_its_address_in_capitals(
    given: str, address: str
) -> None:
    assert read_cordon_body({"address": given}, 0).address == address
    assert read_clear_body({"address": given}) == address


CALL = {"operation": "prepare", "sub_operation": "begin", "extra": "-", "xml": "<domain/>"}


@pytest.mark.parametrize("key", ["operation", "sub_operation", "xml"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(UsageError, match=f"^{key}: missing"):
        parse_hook_call({name: word for name, word in CALL.items() if name != key})


def test_the_extra_argument_may_be_missing_and_must_be_a_word() -> None:
    call = parse_hook_call({name: word for name, word in CALL.items() if name != "extra"})
    assert call == parse_hook_call(CALL)
    with pytest.raises(UsageError, match="extra"):
        parse_hook_call({**CALL, "extra": "x" * 65})


def test_a_query_without_parameters_asks_for_the_newest_events() -> None:
    assert parse_history({}) == (0.0, LIMIT_DEFAULT, None)


def test_a_moment_needs_its_offset() -> None:
    assert parse_history({"since": "1970-01-01T01:00:00+01:00", "limit": "7"}) == (0.0, 7, None)
    with pytest.raises(UsageError, match="a moment with its offset"):
        parse_history({"since": "1970-01-01T01:00:00"})


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "", "1" * 20])
def test_a_limit_is_a_whole_number_in_its_range(limit: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 10000"):
        parse_history({"limit": limit})
