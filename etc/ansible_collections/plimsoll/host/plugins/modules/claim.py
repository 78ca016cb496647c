#!/usr/bin/python
# Copyright: Plimsoll maintainers
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

"""Claim resources of a hypervisor for an instance, or release them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: claim
short_description: Claim resources of a hypervisor for an instance
version_added: 0.1.0
author: Plimsoll maintainers (@plimsoll)
description:
  - Claims what an instance needs, with exact devices, CPUs and memory, or releases its claim.
  - The instance is that of O(consumer), of the domain, or of O(name). The same claim again changes nothing, so a play that was
    interrupted is run again.
  - A claim is not changed in place. Where the instance has a claim that asks for something else, the module fails; release that one
    first, or resize the instance with M(plimsoll.host.move).
extends_documentation_fragment:
  - plimsoll.host.agent
  - plimsoll.host.agent.request
  - plimsoll.host.agent.domain
options:
  state:
    description: V(present) claims, V(absent) releases.
    type: str
    choices: [present, absent]
    default: present
  consumer:
    description: The uuid of the instance.
    type: str
  name:
    description:
      - The name of the instance. Without O(consumer) and a domain it is the key of the claim; the claim is for the instance of this
        host that has the name, else for a new one.
    type: str
  start:
    description:
      - Define the domain with what the claim gave, and start it; its mediated devices are made. If that fails, a claim that was
        made for it is released again. A domain that runs is left as it is.
      - Needs libvirt's Python binding beside the agent, and its command C(plimsoll), beside the module's Python, in C(/opt/plimsoll/bin)
        or in PATH. Without them, and where libvirt does not answer, nothing is claimed.
    type: bool
    default: false
  connect:
    description: The libvirt, for O(start).
    type: str
    default: qemu:///system
  force:
    description: With O(state=absent), release also the claim of a guest that runs.
    type: bool
    default: false
attributes:
  check_mode:
    description: The agent says whether it would grant the claim, and with which devices; nothing is claimed.
    support: full
  diff_mode:
    description: Shows the allocations and the exact units.
    support: full
"""

EXAMPLES = r"""
- name: Claim two CPUs, memory and a GPU
  plimsoll.host.claim:
    name: web1
    resources: {VCPU: 2, MEMORY_MB: 4096}
    groups:
      - suffix: gpu
        resources: {PGPU: 1}

- name: Claim for a domain with the devices that it asks for, and start it
  plimsoll.host.claim:
    domain: "{{ lookup('template', 'web1.xml.j2') }}"
    start: true

- name: Release the claim
  plimsoll.host.claim:
    name: web1
    state: absent
"""

RETURN = r"""
consumer:
  description: The uuid of the instance.
  returned: when the instance is known
  type: str
claim:
  description: The claim, as C(GET /v1/claims/CONSUMER) of the agent's API has it. In check mode what would be allocated.
  returned: with O(state=present)
  type: dict
  contains:
    allocations:
      description: The resources by the uuid of their provider.
      type: dict
    units:
      description: The exact units by provider and resource class, such as PCI addresses.
      type: dict
    cells:
      description: The guest's NUMA cells with their pinned CPUs.
      type: list
    to_make:
      description: The mediated devices that are to be made.
      type: dict
xml:
  description: The domain with everything that the claim gave.
  returned: with a domain and O(state=present), but in check mode
  type: str
started:
  description: Whether the domain was started.
  returned: with O(start)
  type: bool
released:
  description: V(false) where the agent delivers the release when Placement answers again.
  returned: when a claim was released
  type: bool
shortfalls:
  description: What is lacking where.
  returned: when check mode finds that it does not fit
  type: list
  elements: dict
"""

import sys
from pathlib import Path

from ansible_collections.plimsoll.host.plugins.module_utils import agent as shared


class StartFailed(Exception):
    """The sentence, and the command's exit code; None where it was not run."""


def main():
    """Run the module."""
    options = {
        **shared.REQUEST,
        **shared.DOMAIN,
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "consumer": {"type": "str"},
        "start": {"type": "bool", "default": False},
        "connect": {"type": "str", "default": "qemu:///system"},
        "force": {"type": "bool", "default": False},
    }
    module = shared.agent_module(
        options,
        mutually_exclusive=[shared.DOMAIN_EXCLUSIVE, ("flavor", "resources"), ("flavor", "groups")],
        required_one_of=[("consumer", "name", *shared.DOMAIN_EXCLUSIVE)],
        required_if=[
            ("state", "present", shared.ASKED, True),
            ("start", True, shared.DOMAIN_EXCLUSIVE, True),
        ],
    )
    with shared.agent_of(module) as agent:
        xml = shared.domain_text(module)
        before = shared.find_instance(module, agent, **shared.named(module, xml))
        act = _absent if module.params["state"] == "absent" else _present
        module.exit_json(**act(module, agent, xml, before))


def _present(module, agent, xml, before):
    """Claim, and start the domain if asked to."""
    held = before.claim if before else None
    asked, start = shared.request_of(module.params), module.params["start"]
    consumer = module.params["consumer"] or (before.uuid if before else None)
    command = _command(module) if start else None
    runs = start and _runs(module, before)
    if module.check_mode:
        claim = _explained(module, agent, xml, asked, consumer, held)
        more = {"consumer": consumer} if consumer else {}
    elif xml is None:
        claim = shared.encode(agent.claim(asked, consumer=module.params["consumer"] or ""))
        more = {"consumer": claim["consumer"]}
    else:
        try:
            with agent.claim_domain(xml, asked, consumer=consumer) as domain:
                if start and not runs:
                    _start(module, command, xml, domain.consumer)
        except StartFailed as error:
            msg, code = error.args
            if domain.made:
                end = "".join(getattr(error, "__notes__", []))
                msg += f"; {end or f'the claim of {domain.consumer} was released again'}"
            module.fail_json(msg=msg, rc=code)
        claim = shared.encode(domain.claim)
        more = {"consumer": domain.consumer, "xml": domain.xml}
    if start:
        more["started"] = not runs
    diff = {"before": _shown(shared.encode(held)), "after": _shown(claim)}
    changed = diff["before"] != diff["after"] or more.get("started", False)
    return {"changed": changed, "claim": claim, "diff": diff, **more}


def _explained(module, agent, xml, asked, consumer, held):
    """What would be allocated. The module fails where the agent would refuse."""
    if xml is None:
        found = agent.explain_claim(asked, consumer=consumer or "")
    else:
        found = agent.explain_domain(xml, asked, consumer=consumer)
    refusal = "" if held and found.fits else shared.refusal_of(found)
    if refusal:
        module.fail_json(msg=refusal, shortfalls=[shared.encode(each) for each in found.shortfalls])
    claim = shared.encode(found)
    if held and _shown(claim) != _shown(shared.encode(held)):
        module.fail_json(
            msg=f"The instance {held.consumer} has a claim that asks for something else; release that one first "
            "(state: absent), or resize the instance (plimsoll.host.move)"
        )
    return claim


def _command(module):
    """The agent's command, first that beside this Python. It is looked for before anything is claimed."""
    beside = str(Path(sys.executable).parent)
    found = module.get_bin_path("plimsoll", opt_dirs=[beside, "/opt/plimsoll/bin"])
    if found is None:
        module.fail_json(
            msg=f"The command `plimsoll`, which starts the domain, is not in {beside}, /opt/plimsoll/bin and PATH: install "
            "the agent, or set ansible_python_interpreter to the Python of the environment that has it; nothing was claimed"
        )
    return found


def _start(module, command, xml, consumer):
    """Define and start the domain by the agent's command, which undoes what libvirt refuses.

    Raises StartFailed.
    """
    given = module.params
    command = [command, "domain", consumer, "-", "--start", "--connect", given["connect"]]
    command += ["--timeout", str(given["timeout"])]
    command += ["--socket", given["socket"]] if given["socket"] else []
    try:
        code, said, complaint = module.run_command(command, data=xml, handle_exceptions=False)
    except (OSError, ValueError) as error:
        code, said, complaint = None, f"{command[0]} cannot be run: {error}", ""
    if code != 0:
        raise StartFailed((complaint or said).strip().removeprefix("plimsoll: ").rstrip("."), code)


def _runs(module, before):
    """Whether the guest of the instance runs, by libvirt itself: what the agent saw last may be older.

    The module fails where libvirt does not answer, before anything is claimed.
    """
    try:
        import libvirt
    except ImportError as error:
        module.fail_json(
            msg=f"libvirt's Python binding is missing beside the agent ({error}): `apt-get install python3-libvirt`, "
            "or install the agent's wheel with [libvirt]"
        )
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    try:
        connection = libvirt.open(module.params["connect"])
        try:
            return before is not None and bool(connection.lookupByUUIDString(before.uuid).isActive())
        finally:
            connection.close()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        module.fail_json(msg=f"libvirt at {module.params['connect']} cannot be reached: {error}")


def _absent(module, agent, xml, before):
    """Release the claim, if there is one."""
    if before is None or before.claim is None:
        return {"changed": False}
    answer = {"changed": True, "consumer": before.uuid}
    answer["diff"] = {"before": _shown(shared.encode(before.claim)), "after": {}}
    if not module.check_mode:
        try:
            answer["released"] = agent.release(before.uuid, force=module.params["force"]).released
        except shared.NotFound:  # another play released it meanwhile
            return {"changed": False}
    return answer


def _shown(claim):
    """What of a claim a diff shows; what is compared to see whether something changed."""
    return {name: claim[name] for name in ("allocations", "units")} if claim else {}


if __name__ == "__main__":
    main()
