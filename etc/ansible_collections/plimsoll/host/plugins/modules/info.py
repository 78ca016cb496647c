#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Read what the agent of a hypervisor knows."""

from __future__ import annotations

DOCUMENTATION = r"""
module: info
short_description: Read what the agent of a hypervisor knows
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - Reads the agent's state, its instances, devices and moves, what differs between host, claims and Placement, and the provider tree.
extends_documentation_fragment:
  - plimsoll.host.agent
options:
  gather_subset:
    description: What to read. Only V(findings) takes long, as the agent compares guests, claims and Placement for it.
    type: list
    elements: str
    choices: [status, instances, devices, moves, findings, tree]
    default: [status, instances, devices]
attributes:
  check_mode:
    description: Nothing is changed in any mode.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Read instances and findings
  plimsoll.host.info:
    gather_subset: [status, instances, findings]
  register: host

- name: Let only hosts go on that differ in nothing
  ansible.builtin.assert:
    that: host.status.state == "ready" and not host.findings
"""

RETURN = r"""
status:
  description: The state of the agent with the reasons, as C(GET /v1/status) of its API has it.
  returned: with V(status) in O(gather_subset)
  type: dict
instances:
  description: Guests and claims side by side; C(guest) or C(claim) of one may be null.
  returned: with V(instances) in O(gather_subset)
  type: list
  elements: dict
devices:
  description: The devices for guests, who has each, and which are withheld.
  returned: with V(devices) in O(gather_subset)
  type: list
  elements: dict
moves:
  description: The moves that the host takes part in.
  returned: with V(moves) in O(gather_subset)
  type: list
  elements: dict
findings:
  description: What differs, each with its repair.
  returned: with V(findings) in O(gather_subset)
  type: list
  elements: dict
tree:
  description: The provider tree, as Placement has it.
  returned: with V(tree) in O(gather_subset)
  type: dict
"""

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared

SUBSETS = ["status", "instances", "devices", "moves", "findings", "tree"]


def main():
    """Run the module."""
    module = shared.agent_module(
        {
            "gather_subset": {
                "type": "list",
                "elements": "str",
                "choices": SUBSETS,
                "default": ["status", "instances", "devices"],
            }
        }
    )
    with shared.agent_of(module) as agent:
        read = {name: getattr(agent, name) for name in SUBSETS if name != "findings"} | {
            "findings": agent.audit
        }
        found = {name: shared.encode(read[name]()) for name in module.params["gather_subset"]}
        module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
