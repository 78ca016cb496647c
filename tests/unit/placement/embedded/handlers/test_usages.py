"""/usages: sums by project, user and, from 1.38 on, consumer type."""

from __future__ import annotations

from kits.embedded_api import Api, claim, new


def test_usages_are_summed_by_project_and_type(api: Api) -> None:
    host = api.provider("host", {"VCPU": 8})
    for amount, consumer_type in ((1, "INSTANCE"), (2, "INSTANCE"), (4, "MIGRATION")):
        body = claim({host: {"VCPU": amount}}, consumer_type=consumer_type)
        api.done("PUT", f"/allocations/{new()}", body)
    assert api.usage(host) == {"VCPU": 7}
    assert api.done("GET", "/usages?project_id=project", mv="1.37")["usages"] == {"VCPU": 7}
    assert api.done("GET", "/usages?project_id=other", mv="1.37")["usages"] == {}
    assert api.done("GET", "/usages?project_id=project&user_id=user")["usages"] == {
        "INSTANCE": {"VCPU": 3, "consumer_count": 2},
        "MIGRATION": {"VCPU": 4, "consumer_count": 1},
    }
    everything = api.done("GET", "/usages?project_id=project&consumer_type=all")["usages"]
    assert everything == {"all": {"VCPU": 7, "consumer_count": 3}}
