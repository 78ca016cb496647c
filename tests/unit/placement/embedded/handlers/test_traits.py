"""/traits: the list and its filters, and the traits of a provider."""

from __future__ import annotations

from kits.embedded_api import CONCURRENT, Api

AVX = "HW_CPU_X86_AVX"


def names(api: Api, query: str) -> list[str]:
    return list(api.done("GET", f"/traits?{query}")["traits"])


def test_the_list_is_filtered(api: Api) -> None:
    api.done("PUT", "/traits/CUSTOM_GOLD")
    host = api.provider("host")
    api.set_traits(host, AVX)
    assert names(api, f"name=in:{AVX},NONE") == [AVX]
    assert names(api, "name=startswith:CUSTOM_") == ["CUSTOM_GOLD"]
    assert names(api, "associated=true") == [AVX]
    assert AVX not in names(api, "associated=false")
    for wrong in ("name=x", "associated=maybe"):
        api.refused(400, "GET", f"/traits?{wrong}")


def test_the_traits_of_a_provider_are_guarded_by_its_generation(api: Api) -> None:
    path = f"/resource_providers/{api.provider('host')}/traits"
    shown = api.done("PUT", path, {"traits": [AVX], "resource_provider_generation": 0})
    assert shown == {"traits": [AVX], "resource_provider_generation": 1} == api.done("GET", path)
    stale = {"traits": [], "resource_provider_generation": 0}
    api.refused(409, "PUT", path, stale, code=CONCURRENT)
    assert api.ask("DELETE", path).status == 204 and api.done("GET", path)["traits"] == []
