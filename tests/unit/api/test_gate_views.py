"""The questions of libvirt's hook, and the verdicts, as JSON."""

import pytest

from agent.api.gate_views import parse_hook_call, running_view
from agent.driver import Guest, GuestState
from agent.errors import DoesNotFit, UsageError

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


def test_a_guest_that_does_not_fit_is_among_the_refused() -> None:
    guest = Guest("c1", "web1", GuestState.RUNNING, {})
    view = running_view(((guest, DoesNotFit("It does not fit.")),))
    assert view == {
        "claimed": [],
        "refused": [{"consumer": "c1", "name": "web1", "sentence": "It does not fit."}],
    }
