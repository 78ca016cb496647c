"""The inventory plug-in, on a served Placement and on OpenStack's."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from kits.doc_commands import fenced
from kits.embedded_api import Api
from kits.fit import uuid_of
from kits.placements import OpenStack
from kits.playing import ansible

from agent.placement.client import PlacementClient
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.tree import Provider

pytestmark = pytest.mark.ansible

TOKEN = "the-token-of-the-readers"
OTHER_TOKEN = "the-token-of-a-project-alone"
RACK = "6d1f9a3e-8c55-4d1b-9b55-0d2f6a1c7e11"
HOSTILE = "{{ lookup('pipe', 'touch /tmp/x') }}"


@contextmanager
def served(directory: Path, *more: str) -> Iterator[str]:
    """A fleet of two hosts, and of root providers that can be no hosts, and `more`: its address."""
    with closing(Core.open(directory / "state")) as core:
        api = Api(core)
        for name in ("hv1", "hv2", "-oProxyCommand=x", "a b", HOSTILE, *more):
            uuid = api.provider(name, {"VCPU": 8})
            if name in ("hv1", *more):
                api.set_traits(uuid, "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE")
                racks = {"resource_provider_generation": api.generation(uuid), "aggregates": [RACK]}
                api.done("PUT", f"/resource_providers/{uuid}/aggregates", racks)
            if name in ("hv2", *more):
                note = {"version": "0.1.0", "state": "ready", "closed": HOSTILE}
                api.done("PUT", f"/hosts/{uuid}/note", note)
        (directory / "tokens").touch(mode=0o600)
        (directory / "tokens").write_text(f"look reader {TOKEN}\nproject reader@{RACK} {OTHER_TOKEN}\n")
        with Server(core, ["127.0.0.1:0"], tokens_file=directory / "tokens") as server:
            yield f"http://{server.addresses[0]}"


def inventory(directory: Path, **settings: Any) -> dict[str, Any]:
    """What `ansible-inventory --list` says, {group: {hosts}} and the variables of hosts."""
    source, token = directory / "fleet.plimsoll.yml", directory / "token"
    token.write_text(f"{TOKEN}\n")
    told = {"plugin": "plimsoll.host.fleet", "token_file": str(token), **settings}
    source.write_text(yaml.safe_dump({name: value for name, value in told.items() if value is not None}))
    done = ansible("ansible-inventory", "-i", str(source), "--list")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_hosts_are_grouped_by_state_trait_and_aggregate(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        found = inventory(
            tmp_path,
            url=url,
            traits=["*_AVX*"],
            groups={"large": "plimsoll_resources.VCPU.free > 4"},
            keyed_groups=[{"prefix": "agent", "key": "plimsoll_version"}],
            compose={"ansible_host": "plimsoll_name ~ '.example'"},
        )
        groups = {name: set(group["hosts"]) for name, group in found.items() if "hosts" in group}
        assert groups == {
            "state_no_note": {"hv1"},
            "state_closed": {"hv2"},
            "trait_HW_CPU_X86_AVX2": {"hv1"},
            f"aggregate_{RACK.replace('-', '_')}": {"hv1"},
            "large": {"hv1", "hv2"},
            "agent_0_1_0": {"hv2"},
        }
        variables = found["_meta"]["hostvars"]
        assert set(variables) == {"hv1", "hv2"} and "hv2.example" in json.dumps(
            variables["hv2"]["ansible_host"]
        )
        assert variables["hv1"]["plimsoll_resources"] == {"VCPU": {"free": 8, "capacity": 8}}


def test_a_host_with_the_name_of_a_group_changes_no_other(tmp_path: Path) -> None:
    names = ["all", "ungrouped", "state_closed", "trait_HW_CPU_X86_AVX2", "large", "agent_0_1_0", "agent"]
    with served(tmp_path, *names) as url:
        found = inventory(
            tmp_path,
            url=url,
            traits=["*_AVX*"],
            strict=True,
            groups={"large": "plimsoll_resources.VCPU.free > 4"},
            keyed_groups=[
                {"prefix": "agent", "key": "me[:0] ~ (plimsoll_version or 'none')", "parent_group": "agent"},
            ],
            compose={"me": "plimsoll_name"},
        )
        said = ansible("ansible-inventory", "-i", str(tmp_path / "fleet.plimsoll.yml"), "--list").stderr
    variables = found["_meta"]["hostvars"]
    assert set(variables) == {"hv1", "hv2"}
    for name, each in variables.items():
        assert f'"{name}"' in json.dumps(each["me"]) and f'"{name}"' in json.dumps(each["plimsoll_name"])
    assert set(found["agent"]["children"]) >= {"agent_0_1_0"} and "vars" not in found["all"]
    for name in names:
        assert f"leaves out '{name}': a group has that name" in " ".join(said.split())


def test_no_host_takes_the_place_of_the_machine_that_runs_ansible(tmp_path: Path) -> None:
    with served(tmp_path, "localhost", "127.0.0.1") as url:
        found = inventory(tmp_path, url=url, compose={"ansible_host": "plimsoll_name ~ '.example'"})
        assert set(found["_meta"]["hostvars"]) == {"hv1", "hv2"}


def test_the_inventory_of_the_page(tmp_path: Path) -> None:
    page = yaml.safe_load(fenced("ansible.md", "yaml", 3))
    del page["token_file"]
    with served(tmp_path) as url:
        assert inventory(tmp_path, **{**page, "url": url})["state_closed"]["hosts"] == ["hv2"]


def test_what_other_services_wrote_is_no_template(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        inventory(tmp_path, url=url)
        shown = ansible(
            *("ansible", "hv2", "-i", str(tmp_path / "fleet.plimsoll.yml")),
            *("-m", "ansible.builtin.debug", "-a", "msg={{ plimsoll_reason }}"),
        ).stdout
        assert HOSTILE in shown and not Path("/tmp/x").exists()


def test_the_cache_spares_the_placement(tmp_path: Path) -> None:
    caching = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    with served(tmp_path) as url:
        first = inventory(tmp_path, url=url, **caching)
    assert inventory(tmp_path, url=url, **caching) == first


def test_a_wrong_token_and_an_absent_server_are_said(tmp_path: Path) -> None:
    source = tmp_path / "plimsoll.yml"
    with served(tmp_path) as url:
        source.write_text(f"plugin: plimsoll.host.fleet\nurl: {url}\n")
        said = ansible("ansible-inventory", "-i", str(source), "--list").stderr
        assert "with 401" in said and "needs a valid token" in said
        token = tmp_path / "other"
        token.write_text(OTHER_TOKEN)
        for line, sentences in (
            (
                f"token_file: {token}",
                ["with 403: The roles of", "Name a file with a reader's token in `token_file`"],
            ),
            (f"token_file: {tmp_path}/none", [f"token cannot be read from {tmp_path}/none (`token_file`)"]),
            ("timeout: 0", ["1 or more"]),
        ):
            source.write_text(f"plugin: plimsoll.host.fleet\nurl: {url}\n{line}\n")
            said = " ".join(ansible("ansible-inventory", "-i", str(source), "--list").stderr.split())
            assert all(each in said for each in sentences), said
    for away, sentence in ((url, "Connection refused"), (f"unix:{tmp_path}/none", "No such file")):
        source.write_text(f"plugin: plimsoll.host.fleet\nurl: {away}\n")
        said = " ".join(ansible("ansible-inventory", "-i", str(source), "--list").stderr.split())
        assert f"Placement at {away} cannot be read" in said and sentence in said


def test_a_standby_is_told_and_no_redirect_gets_the_token(tmp_path: Path) -> None:
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            away = self.path.startswith("/moved")
            body = json.dumps({"rows": [], "pages": 1, "traits": []}).encode()
            self.send_response(302 if away else 200)
            self.send_header("plimsoll-stale", "true")
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        source, url = tmp_path / "plimsoll.yml", f"http://127.0.0.1:{server.server_port}"
        for path, sentence in (("", "is a standby"), ("/moved", "with 302")):
            source.write_text(f"plugin: plimsoll.host.fleet\nurl: {url}{path}\n")
            assert sentence in ansible("ansible-inventory", "-i", str(source), "--list").stderr
        server.shutdown()
    assert "/elsewhere" not in asked and len(asked) == 3


def test_openstacks_placement_knows_traits_and_aggregates(tmp_path: Path, openstack: OpenStack) -> None:
    openstack.empty()
    with closing(openstack.transport()) as transport, closing(PlacementClient(transport)) as client:
        for name, traits in (
            ("hv1", ["HW_CPU_X86_AVX2"]),
            ("hv2", ["COMPUTE_STATUS_DISABLED"]),
            ("pool", ["MISC_SHARES_VIA_AGGREGATE"]),
        ):
            root = Provider(uuid_of(name), name)
            generation = client.put_traits(root.uuid, client.create_provider(root), traits)
            client.put_aggregates(root.uuid, generation, [RACK])
        client.create_provider(Provider(uuid_of("cell"), "hv1_numa0", uuid_of("hv1")))
        url = openstack.options["endpoint_override"]
        found = inventory(tmp_path, url=url, token_file=None, traits=["HW_*", "COMPUTE_*"])
    groups = {name: set(group["hosts"]) for name, group in found.items() if "hosts" in group}
    assert groups == {
        "state_ready": {"hv1"},
        "state_disabled": {"hv2"},
        "trait_HW_CPU_X86_AVX2": {"hv1"},
        "trait_COMPUTE_STATUS_DISABLED": {"hv2"},
        f"aggregate_{RACK.replace('-', '_')}": {"hv1", "hv2"},
    }
