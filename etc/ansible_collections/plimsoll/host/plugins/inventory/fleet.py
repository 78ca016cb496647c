# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""The hosts of a fleet, from its Placement."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
short_description: The hosts of a fleet, from its Placement
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - Reads the hosts of a fleet from C(plimsoll placement serve), or from OpenStack's Placement, which knows nothing of a host's state but
    whether it is disabled for schedulers.
  - Each host has its state, traits, aggregates and free resources as variables, and is in groups by them, such as C(state_ready),
    C(trait_CUSTOM_RACK_7) and C(aggregate_UUID). Characters that a group's name cannot have become C(_).
  - A host that has the name of a group, of this source or one before it, is left out with a warning.
  - The source is a file whose name ends in C(plimsoll.yml) or C(plimsoll.yaml).
extends_documentation_fragment:
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [plimsoll.host.fleet]
  url:
    description: The Placement, C(http://...), C(https://...) or C(unix:PATH).
    type: str
    required: true
    env:
      - name: PLIMSOLL_PLACEMENT_URL
  token_file:
    description: A file with the token, that of a reader is enough. Without it, C(admin) is sent, which a Placement without tokens takes.
    type: path
    env:
      - name: PLIMSOLL_PLACEMENT_TOKEN_FILE
  cafile:
    description: The authority of the certificate there, PEM.
    type: path
  timeout:
    description: How many seconds a request may take.
    type: int
    default: 30
  traits:
    description:
      - Patterns of the traits to read. Each trait is one request. A host has those of all providers of its tree.
    type: list
    elements: str
    default: [CUSTOM_*]
  group_by:
    description: Which groups are made.
    type: list
    elements: str
    choices: [state, trait, aggregate]
    default: [state, trait, aggregate]
"""

EXAMPLES = r"""
# fleet.plimsoll.yml: ansible-inventory -i fleet.plimsoll.yml --graph
plugin: plimsoll.host.fleet
url: https://placement.example:8778
token_file: /etc/plimsoll/reader.token
cafile: /etc/plimsoll/placement.crt
traits: [CUSTOM_*, HW_CPU_X86_AVX512*]
cache: true
compose:
  ansible_host: plimsoll_name ~ '.example'
groups:
  with_free_gpu: plimsoll_resources.PGPU.free | default(0) > 0
keyed_groups:
  - prefix: agent
    key: plimsoll_version
"""

import json
import re
import urllib.error
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from ansible.errors import AnsibleParserError
from ansible.inventory.data import InventoryData
from ansible.module_utils.urls import open_url
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.utils.unsafe_proxy import wrap_var

HOST_NAME = re.compile(r"(?!(localhost|127\.0\.0\.1)\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
"""What may become the name of a host: Ansible gives it to ssh as an argument. The two first are its own machine."""
DISABLED = "COMPUTE_STATUS_DISABLED"
SHARED_POOL = "MISC_SHARES_VIA_AGGREGATE"
MICROVERSION = "1.39"
STALE = "plimsoll-stale"
"""The header of a server's answer that is no active one."""
PAGE = 1000
ERROR_BYTES = 5000
COLUMNS = (
    "name",
    "uuid",
    "state",
    "reason",
    "version",
    "instances",
    "moves",
    "findings",
    "withheld",
    "aggregates",
)
"""Of the table of hosts, those that become variables beside resources and traits."""


class GroupNames(InventoryData):
    """An inventory that shows which groups come to be, also where a host has the name of one."""

    def set_variable(self, entity, varname, value):
        """Set it for the host of that name, also where a group has it, too."""
        self.hosts[entity].set_variable(varname, value)

    def add_child(self, group, child):
        """Change nothing: who is in a group makes no group."""
        return True


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """The plugin."""

    NAME = "plimsoll.host.fleet"

    def verify_file(self, path):
        """Whether the file is a source of this plugin, by its name."""
        return super().verify_file(path) and path.endswith(("plimsoll.yml", "plimsoll.yaml"))

    def parse(self, inventory, loader, path, cache=True):
        """Read the hosts, from the cache if it has them, and put them into the inventory."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        if self.get_option("timeout") <= 0:
            raise AnsibleParserError(
                "`timeout` of plimsoll.host.fleet is the seconds that a request may take: give 1 or more"
            )
        key, caching = self.get_cache_key(path), self.get_option("cache")
        hosts = self._cache.get(key) if caching and cache else None
        if hosts is None:
            hosts = self._read_hosts()
            if caching:
                self._cache[key] = hosts
        self.inventory = GroupNames()
        for host in hosts:
            self._add(host)
        groups, self.inventory = {*inventory.groups, *self.inventory.groups}, inventory
        for host in hosts:
            if host["name"] in groups:  # what is set for the host would be set for the group
                self.display.warning(
                    f"plimsoll.host.fleet leaves out {host['name']!r}: a group has that name"
                )
            else:
                self._add(host)

    def _add(self, host):
        name, strict = host["name"], self.get_option("strict")
        if not HOST_NAME.fullmatch(name):
            self.display.warning(f"plimsoll.host.fleet leaves out {name!r}: that can be no host's name")
            return
        self.inventory.add_host(name)
        # Other services write them, so they are no templates.
        facts = {f"plimsoll_{key}": wrap_var(value) for key, value in host.items()}
        for key, value in facts.items():
            self.inventory.set_variable(name, key, value)
        values = {"state": [host["state"]], "trait": host["traits"], "aggregate": host["aggregates"]}
        for kind in self.get_option("group_by"):
            for value in values[kind]:
                self.inventory.add_host(
                    name, self.inventory.add_group(self._sanitize_group_name(f"{kind}_{value}"))
                )
        self._set_composite_vars(self.get_option("compose"), facts, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), facts, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), facts, name, strict=strict)

    def _read_hosts(self):
        """The hosts by name, each with those of its traits that are asked for."""
        hosts = self._read_table()
        if hosts is None:
            hosts = self._read_providers()
        if "trait" in self.get_option("group_by"):
            traits = self._get("/traits?associated=true")["traits"]
            patterns = self.get_option("traits")
            for trait in sorted(name for name in traits if any(fnmatch(name, each) for each in patterns)):
                roots = self._roots_with(trait)
                for host in hosts:
                    host["traits"] += [trait] if host["uuid"] in roots else []
        return hosts

    def _read_table(self):
        """What a served Placement knows of its hosts; None where this is another one."""
        hosts, page = [], 1
        while True:
            answer = self._get(f"/fleet?sort=name&limit={PAGE}&page={page}")
            if answer is None:
                return None
            for row in answer["rows"]:
                amounts = row["resources"].items()
                resources = {name: {"free": free, "capacity": total} for name, (free, total) in amounts}
                hosts.append({**{name: row[name] for name in COLUMNS}, "resources": resources, "traits": []})
            if page >= answer["pages"]:
                return hosts
            page += 1

    def _read_providers(self):
        """The root providers that are no shared pools."""
        answer = self._get("/resource_providers")
        if answer is None:
            raise AnsibleParserError(
                f"{self.get_option('url')} is no Placement: it has no /resource_providers"
            )
        pools, disabled = self._roots_with(SHARED_POOL), self._roots_with(DISABLED)
        hosts = []
        for provider in sorted(answer["resource_providers"], key=lambda each: each["name"]):
            uuid = provider["uuid"]
            if provider["parent_provider_uuid"] is None and uuid not in pools:
                groups = self._get(f"/resource_providers/{uuid}/aggregates")
                if groups is not None:  # it was not deleted meanwhile
                    state = "disabled" if uuid in disabled else "ready"
                    host = {"name": provider["name"], "uuid": uuid, "state": state, "traits": []}
                    hosts.append({**host, "aggregates": groups["aggregates"]})
        return hosts

    def _roots_with(self, trait):
        """The root providers of the trees in which a provider has the trait."""
        answer = self._get(f"/resource_providers?required={trait}")
        return {each["root_provider_uuid"] for each in answer["resource_providers"]} if answer else set()

    def _get(self, path):
        """The answer to a request; None where there is no such path. Follows no redirect, for the token's sake."""
        url, options = self.get_option("url"), {}
        base = url.rstrip("/")
        if url.startswith("unix:"):
            base, options = "http://localhost", {"unix_socket": url[len("unix:") :]}
        headers = {"Accept": "application/json", "OpenStack-API-Version": f"placement {MICROVERSION}"}
        file = self.get_option("token_file")
        try:
            headers["X-Auth-Token"] = Path(file).read_text(encoding="ascii").strip() if file else "admin"
        except (OSError, ValueError) as error:
            raise AnsibleParserError(
                f"The token cannot be read from {file} (`token_file`): {error}"
            ) from error
        try:
            with open_url(
                base + path,
                headers=headers,
                timeout=self.get_option("timeout"),
                ca_path=self.get_option("cafile"),
                follow_redirects="no",
                **options,
            ) as answer:
                if STALE in answer.headers:
                    self.display.warning(
                        f"{url} is a standby, which knows no states of hosts: name the active server"
                    )
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 405, 406):
                return None
            said = error.read(ERROR_BYTES).decode("utf-8", "replace")
            with suppress(ValueError, LookupError, TypeError):
                said = str(json.loads(said)["errors"][0]["detail"])
            help_ = ". Name a file with a reader's token in `token_file`" if error.code in (401, 403) else ""
            raise AnsibleParserError(
                f"Placement at {url} answers {path} with {error.code}: {said.rstrip('.')}{help_}"
            ) from error
        except (OSError, ValueError) as error:
            raise AnsibleParserError(f"Placement at {url} cannot be read: {error}") from error
