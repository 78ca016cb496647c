#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Begin, confirm and revert moves of instances between hypervisors."""

from __future__ import annotations

DOCUMENTATION = r"""
module: move
short_description: Begin, confirm and revert moves of instances
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - A move begins on the destination. The instance then holds its new place, and the migration its old one, until the move is
    confirmed or reverted, on either host.
  - A move is known by its O(migration). With the same uuid each run is about the same move. Without it, the module finds the move of
    O(consumer) that has not ended, so a step that was done is not done again while the move goes on.
  - M(plimsoll.host.info) lists the moves of a host.
extends_documentation_fragment:
  - plimsoll.host.agent
  - plimsoll.host.agent.request
  - plimsoll.host.agent.domain
options:
  state:
    description: The state of the move.
    type: str
    choices: [begun, confirmed, reverted]
    required: true
  migration:
    description: The uuid of the migration. Without it, a move that begins gets a new one.
    type: str
  consumer:
    description: The uuid of the instance. Needed to begin.
    type: str
  kind:
    description: The kind of the move. Needed to begin.
    type: str
    choices: [cold_migrate, resize, same_host_resize, live_migrate, rebuild, evacuate]
  name:
    description: The name of the instance.
    type: str
  alternative:
    description: The number of the alternative to take, from 1; V(0) is the first that fits. Without it, the one that the instance has.
    type: int
  wait:
    description: How many seconds to wait until a move that is confirmed or reverted has ended. The module fails if it has not by then.
    type: int
    default: 0
attributes:
  check_mode:
    description: For a move that would begin, the agent says whether the instance would fit. It cannot say so for an instance of its own host.
    support: full
  diff_mode:
    description: Shows the state of the move.
    support: full
"""

EXAMPLES = r"""
- name: Begin a live migration to this host
  plimsoll.host.move:
    state: begun
    migration: "{{ ('web1 to ' ~ inventory_hostname) | ansible.builtin.to_uuid }}"
    consumer: 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69
    kind: live_migrate
    flavor: {vcpus: 2, memory_mb: 4096}

- name: Confirm it, and wait until the source is free
  plimsoll.host.move:
    state: confirmed
    consumer: 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69
    wait: 60
"""

RETURN = r"""
move:
  description: The move, as C(GET /v1/moves/MIGRATION) of the agent's API has it. In check mode as it was before.
  returned: when the move is known
  type: dict
  contains:
    migration:
      description: The uuid of the migration.
      type: str
    instance:
      description: The uuid of the instance.
      type: str
    state:
      description: The state, such as V(begun) or V(confirmed).
      type: str
    ended:
      description: Whether nothing is left to do.
      type: bool
    next:
      description: Who acts next, and what they do.
      type: str
"""

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared


def main():
    """Run the module."""
    options = {
        **shared.REQUEST,
        **shared.DOMAIN,
        "state": {"type": "str", "choices": ["begun", "confirmed", "reverted"], "required": True},
        "migration": {"type": "str"},
        "consumer": {"type": "str"},
        "kind": {
            "type": "str",
            "choices": ["cold_migrate", "resize", "same_host_resize", "live_migrate", "rebuild", "evacuate"],
        },
        "alternative": {"type": "int"},
        "wait": {"type": "int", "default": 0},
    }
    module = shared.agent_module(
        options,
        mutually_exclusive=[shared.DOMAIN_EXCLUSIVE, ("flavor", "resources"), ("flavor", "groups")],
        required_one_of=[("migration", "consumer")],
        required_if=[("state", "begun", ("consumer", "kind")), ("state", "begun", shared.ASKED, True)],
    )
    with shared.agent_of(module) as agent:
        before = _known(module, agent)
        act = _begin if module.params["state"] == "begun" else _end
        after = act(module, agent, before)
        diff = {"before": _shown(before), "after": _shown(after)}
        if module.check_mode and diff["before"].get("state") != module.params["state"]:
            diff["after"] = {"state": module.params["state"]}
            if before and (before.ended or module.params["state"] == "begun"):
                diff["after"] = diff["before"]
        changed = diff["before"] != diff["after"]
        module.exit_json(changed=changed, diff=diff, **({"move": shared.encode(after)} if after else {}))


def _known(module, agent):
    """The move that the options name; None where this host knows none."""
    migration, consumer = module.params["migration"], module.params["consumer"]
    for move in agent.moves(look=True):
        if move.migration == migration if migration else move.instance == consumer and not move.ended:
            return move
    return None


def _begin(module, agent, before):
    """Begin the move, unless it was begun before; one that has ended by now was, too."""
    given, asked, xml = module.params, shared.request_of(module.params), shared.domain_text(module)
    if before and before.ended:
        return before
    if not module.check_mode:
        migration = given["migration"] or (before.migration if before else "")
        return agent.begin_move(
            given["kind"],
            asked,
            consumer=given["consumer"],
            domain=xml,
            migration=migration,
            alternative=given["alternative"],
        )
    if before is None and shared.find_instance(module, agent, given["consumer"]) is None:
        if xml is None:
            refusal = shared.refusal_of(agent.explain_claim(asked, consumer=given["consumer"]))
        else:
            refusal = shared.refusal_of(agent.explain_domain(xml, asked, consumer=given["consumer"]))
        if refusal:
            module.fail_json(msg=refusal)
    return before


def _end(module, agent, before):
    """Confirm or revert the move, and wait until it has ended."""
    given = module.params
    if before is None and not given["migration"]:
        module.fail_json(
            msg=f"This host knows no move of {given['consumer']} that has not ended; give `migration`"
        )
    if module.check_mode and before and before.ended and before.state != given["state"]:
        module.fail_json(msg=f"The move has ended already: it is {before.state}")
    if module.check_mode or (before and before.state == given["state"]):
        return before
    end = agent.confirm_move if given["state"] == "confirmed" else agent.revert_move
    migration = before.migration if before else given["migration"]
    move = end(migration, instance=given["consumer"])

    def ended():
        nonlocal move
        if not move.ended:
            move = agent.show_move(migration)
        return move.ended

    if given["wait"] and not shared.wait_until(ended, given["wait"]):
        module.fail_json(
            msg=f"The move has not ended after {given['wait']} s: {move.next}",
            move=shared.encode(move),
            changed=True,
        )
    return move


def _shown(move):
    """What of a move a diff shows; what is compared to see whether something changed."""
    return {"migration": move.migration, "state": move.state} if move else {}


if __name__ == "__main__":
    main()
