#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Keep a device of a hypervisor from guests, or give it back to them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: device
short_description: Keep a device from guests, or give it back
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - A device that is cordoned is given to no guest, also after a restart of the agent. The guest that has it keeps it.
extends_documentation_fragment:
  - plimsoll.host.agent
options:
  address:
    description: A PCI address, of a card or of one of its functions, or the uuid of a mediated device.
    type: str
    required: true
  state:
    description:
      - V(cordoned) keeps the device from guests.
      - V(cleared) gives it back. It also excuses what made the device unhealthy, if that is why it is withheld.
    type: str
    choices: [cordoned, cleared]
    default: cordoned
  reason:
    description: Why, with O(state=cordoned). Without it, that of an earlier cordon stays.
    type: str
attributes:
  check_mode:
    description: Nothing is changed.
    support: full
  diff_mode:
    description: Shows the cordon and its reason.
    support: full
"""

EXAMPLES = r"""
- name: Keep a GPU from guests
  plimsoll.host.device:
    address: "0000:84:00.0"
    reason: it is to be replaced

- name: Give it back
  plimsoll.host.device:
    address: "0000:84:00.0"
    state: cleared
"""

RETURN = r"""
devices:
  description: The devices of the address, each as C(GET /v1/devices) has it, with who holds it. In check mode as they were before.
  returned: always
  type: list
  elements: dict
"""

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared


def main():
    """Run the module."""
    module = shared.agent_module(
        {
            "address": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["cordoned", "cleared"], "default": "cordoned"},
            "reason": {"type": "str"},
        }
    )
    address, reason = module.params["address"].lower(), module.params["reason"]
    with shared.agent_of(module) as agent:
        devices = _devices(agent, address)
        if not devices:
            module.fail_json(
                msg=f"{address} is no device that this host offers; plimsoll.host.info lists them"
            )
        cordons = [each.cordon for each in devices if each.cordon and each.cordon.address == address]
        before = {"cordoned": True, "reason": cordons[0].reason} if cordons else {"cordoned": False}
        unhealthy = any(each.health and address in (each.unit, each.health.address) for each in devices)
        if module.params["state"] == "cordoned":
            after = {"cordoned": True, "reason": before.get("reason", "") if reason is None else reason}
            changed = before != after
            if changed and not module.check_mode:
                agent.cordon_device(address, after["reason"])
        else:
            after, changed = {"cordoned": False}, bool(cordons) or unhealthy
            if changed and not module.check_mode:
                agent.clear_device(address)
        if changed and not module.check_mode:
            devices = _devices(agent, address)
        module.exit_json(
            changed=changed,
            diff={"before": before, "after": after},
            devices=[shared.encode(each) for each in devices],
        )


def _devices(agent, address):
    """The units of the device: itself, or those of a card."""
    return [
        each
        for each in agent.devices()
        if address == each.unit
        or (each.cordon and each.cordon.address == address)
        or (each.health and each.health.address == address)
    ]


if __name__ == "__main__":
    main()
