#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Ask on which hosts of the fleet a guest fits."""

from __future__ import annotations

DOCUMENTATION = r"""
module: where
short_description: Ask on which hosts of the fleet a guest fits
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - Asks the Placement that the host's agent uses on which hosts a request fits, best first; if on none, why, and what would make room.
  - Nothing is claimed. The module does not fail where nothing fits; RV(verdict) says that.
extends_documentation_fragment:
  - plimsoll.host.agent
  - plimsoll.host.agent.request
  - plimsoll.host.agent.domain
options:
  name:
    description: The name of the instance.
    type: str
  strategy:
    description: Which host is best; the fullest that fits, or the emptiest.
    type: str
    choices: [pack, spread]
    default: pack
  count:
    description: So many guests are to fit together.
    type: int
    default: 1
  host:
    description: Ask of this host alone, by its name or its uuid.
    type: str
attributes:
  check_mode:
    description: Nothing is changed in any mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Find the best host for a guest
  plimsoll.host.where:
    flavor: {vcpus: 4, memory_mb: 8192}
  register: room
  run_once: true

- name: Claim on the host that was found
  plimsoll.host.claim:
    name: web1
    flavor: {vcpus: 4, memory_mb: 8192}
  when: room.places and room.places[0].host == inventory_hostname
"""

RETURN = r"""
verdict:
  description: V(fits), V(not_now), or V(never), where no host has room even with nothing in use.
  returned: always
  type: str
sentence:
  description: The same for people.
  returned: always
  type: str
places:
  description: The hosts with room, best first, each with what the guest would get and what would be left.
  returned: always
  type: list
  elements: dict
nearest:
  description: The hosts that lack the least, and who holds it.
  returned: always
  type: list
  elements: dict
changes:
  description: The smallest changes that make room.
  returned: always
  type: list
  elements: dict
closed:
  description: The hosts that take no claims, and why.
  returned: always
  type: list
  elements: dict
"""

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared


def main():
    """Run the module."""
    options = {
        **shared.REQUEST,
        **shared.DOMAIN,
        "strategy": {"type": "str", "choices": ["pack", "spread"], "default": "pack"},
        "count": {"type": "int", "default": 1},
        "host": {"type": "str"},
    }
    module = shared.agent_module(
        options,
        mutually_exclusive=[shared.DOMAIN_EXCLUSIVE, ("flavor", "resources"), ("flavor", "groups")],
        required_one_of=[shared.ASKED],
    )
    given = {name: module.params[name] for name in ("strategy", "count", "host")}
    with shared.agent_of(module) as agent:
        answer = agent.where(shared.request_of(module.params), xml=shared.domain_text(module), **given)
        module.exit_json(changed=False, **shared.encode(answer))


if __name__ == "__main__":
    main()
