#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Pause a hypervisor until nothing is left on it, or take claims again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drain
short_description: Empty a hypervisor, or take claims again
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - Pauses the host, so that it takes no new claims and moves, and says what is left on it. The module moves nothing itself.
  - Ends the pause again, also one that an operator made with C(plimsoll pause).
extends_documentation_fragment:
  - plimsoll.host.agent
options:
  state:
    description: V(present) pauses and drains, V(absent) resumes.
    type: str
    choices: [present, absent]
    default: present
  reason:
    description: Why, for C(plimsoll status) and each refusal. Without it, that of an earlier pause stays.
    type: str
  schedulers:
    description: Whether schedulers are told, by the trait COMPUTE_STATUS_DISABLED. Without it, that stays as it is.
    type: bool
  wait:
    description: How many seconds to wait until nothing is left. The module fails if something is left then.
    type: int
    default: 0
attributes:
  check_mode:
    description: Nothing is changed, and the module does not wait.
    support: full
  diff_mode:
    description: Shows the pause.
    support: full
"""

EXAMPLES = r"""
- name: Empty the host for new firmware
  plimsoll.host.drain:
    reason: new firmware
    schedulers: true
    wait: 3600

- name: Take claims again
  plimsoll.host.drain:
    state: absent
"""

RETURN = r"""
pause:
  description: The pause with its reason, the user who asked for it, and since when. In check mode as it was before.
  returned: when the host is paused
  type: dict
left:
  description: The instances that hold resources here or whose guest is here, each as C(GET /v1/instances) has it.
  returned: with O(state=present)
  type: list
  elements: dict
drained:
  description: Whether nothing is left.
  returned: with O(state=present)
  type: bool
claims_closed:
  description: Why the host still takes no claims; empty where it takes them.
  returned: with O(state=absent), but in check mode
  type: str
"""

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared


def main():
    """Run the module."""
    module = shared.agent_module(
        {
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "reason": {"type": "str"},
            "schedulers": {"type": "bool"},
            "wait": {"type": "int", "default": 0},
        }
    )
    with shared.agent_of(module) as agent:
        before = agent.status().pause
        act = _resume if module.params["state"] == "absent" else _drain
        module.exit_json(**act(module, agent, before))


def _resume(module, agent, before):
    shared.warn_unused(module, "reason", "schedulers", "wait")
    answer = {"changed": before is not None, "diff": {"before": _shown(before), "after": {}}}
    if module.check_mode:
        return answer
    if before is not None:
        agent.resume()
    return {**answer, "claims_closed": agent.status().claims.reason or ""}


def _drain(module, agent, before):
    given = {name: module.params[name] for name in ("reason", "schedulers")}
    wanted = {name: value for name, value in given.items() if value is not None}
    after = {"reason": "", "schedulers": False, **_shown(before), **wanted, "drains": True}
    changed = after != _shown(before)
    pause = before
    if changed and not module.check_mode:
        pause = agent.pause(module.params["reason"], schedulers=module.params["schedulers"], drain=True)
    left = agent.instances()

    def empty():
        nonlocal left
        if left:
            agent.moves(look=True)  # what the hosts did to which the instances move
            left = agent.instances()
        return not left

    if not module.check_mode and module.params["wait"]:
        shared.wait_until(empty, module.params["wait"])
    answer = {
        "changed": changed,
        "diff": {"before": _shown(before), "after": after},
        "left": [shared.encode(each) for each in left],
        "drained": not left,
    }
    if pause is not None:
        answer["pause"] = shared.encode(pause)
    if left and module.params["wait"] and not module.check_mode:
        names = ", ".join(each.name or each.uuid for each in left[:8]) + (", ..." if len(left) > 8 else "")
        module.fail_json(msg=f"Still on this host after {module.params['wait']} s: {names}", **answer)
    return answer


def _shown(pause):
    """What of a pause a diff shows; what is compared to see whether something changes."""
    if pause is None:
        return {}
    return {"reason": pause.reason, "schedulers": pause.schedulers, "drains": pause.drains}


if __name__ == "__main__":
    main()
