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
      - V(cleared) gives it back. It also excuses what made the device unhealthy, if that is why it is withheld. For an address that the host
        does not offer it warns.
    type: str
    choices: [cordoned, cleared]
    default: cordoned
  reason:
    description: Why, with O(state=cordoned). Without it, that of an earlier cordon stays.
    type: str
attributes:
  check_mode:
    description: Nothing is changed. Whether the host offers the device is only checked when it is cordoned.
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
  description: The device, or those of a card that are withheld with it, each as C(GET /v1/devices) has it. In check mode as they were before.
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
    if module.params["state"] == "cleared":
        shared.warn_unused(module, "reason")
    with shared.agent_of(module) as agent:
        found = agent.devices()
        # The agent writes addresses in small letters; a part of a card may follow, whose name is free.
        address, slash, part = module.params["address"].partition("/")
        address = f"{address.lower()}{slash}{part}"
        before, reason = {"cordoned": False}, module.params["reason"]
        for cordon in (each.cordon for each in found if each.cordon and each.cordon.address == address):
            before = {"cordoned": True, "reason": cordon.reason}
        if module.params["state"] == "cordoned":
            after = {"cordoned": True, "reason": before.get("reason", "") if reason is None else reason}
            changed = before != after
        else:
            after = {"cordoned": False}
            changed = before != after or any(each.health and address == each.health.address for each in found)
        if changed and not module.check_mode:
            if after["cordoned"]:
                agent.cordon_device(address, after["reason"])
            else:
                agent.clear_device(address)
            found = agent.devices()
        named = _devices(found, address)
        if not (changed or named or after["cordoned"]):
            module.warn(
                f"Nothing was cleared: {address} is neither a device that this host offers nor a card that is withheld; "
                "`plimsoll devices list` shows them"
            )
        module.exit_json(
            changed=changed,
            diff={"before": before, "after": after},
            devices=[shared.encode(each) for each in named],
        )


def _devices(found, address):
    """Those of the devices that are the address, or are withheld with the card of this address."""
    return [
        each
        for each in found
        if address == each.unit
        or (each.cordon and each.cordon.address == address)
        or (each.health and each.health.address == address)
    ]


if __name__ == "__main__":
    main()
