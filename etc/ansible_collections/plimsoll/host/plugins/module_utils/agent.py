"""What the modules of this collection share: the agent of their host, the options of a request, and waiting."""

from __future__ import annotations

import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module

try:
    from plimsoll import Agent, NotFound, PlimsollError
    from plimsoll.values import domain_key, encode
except ImportError:
    MISSING = traceback.format_exc()
else:
    MISSING = ""

INTERPRETERS = ("/opt/plimsoll/bin/python3", "/usr/bin/python3")
"""Where the agent's wheel and its Debian package put the Python package `plimsoll`."""
POLL_S = 2.0

COMMON = {
    "socket": {"type": "str"},
    "timeout": {"type": "float", "default": 30},
}
GROUP = {
    "suffix": {"type": "str"},
    "resources": {"type": "dict"},
    "required": {"type": "list", "elements": "str"},
    "member_of": {"type": "list", "elements": "str"},
    "numa_policy": {"type": "str", "choices": ["required", "preferred", "legacy", "socket"]},
}
FLAVOR = {
    "vcpus": {"type": "int", "required": True},
    "memory_mb": {"type": "int", "required": True},
    "disk_gb": {"type": "int"},
    "extra_specs": {"type": "dict"},
}
PCI = {
    "alias": {"type": "str", "required": True},
    "count": {"type": "int"},
}
TOPOLOGY = {
    "cpu_policy": {"type": "str", "choices": ["shared", "dedicated", "mixed"]},
    "cpu_thread_policy": {"type": "str", "choices": ["prefer", "isolate", "require"]},
    "cells": {"type": "int"},
    "cell_cpus": {"type": "list", "elements": "str"},
    "cell_memory_mb": {"type": "list", "elements": "int"},
    "dedicated_cpus": {"type": "str"},
    "mem_page_size": {"type": "str"},
    "pci_numa_policy": {"type": "str", "choices": ["required", "preferred", "legacy", "socket"]},
    "isolate_emulator": {"type": "bool"},
}
REQUEST = {
    "resources": {"type": "dict"},
    "groups": {"type": "list", "elements": "dict", "options": GROUP},
    "group_policy": {"type": "str", "choices": ["none", "isolate"]},
    "same_subtree": {"type": "list", "elements": "list"},
    "root_required": {"type": "list", "elements": "str"},
    "topology": {"type": "dict", "options": TOPOLOGY},
    "pci": {"type": "list", "elements": "dict", "options": PCI},
    "flavor": {"type": "dict", "options": FLAVOR},
    "image": {"type": "dict"},
    "alternatives": {"type": "list", "elements": "dict"},
    "name": {"type": "str"},
    "project_id": {"type": "str"},
    "user_id": {"type": "str"},
    "consumer_type": {"type": "str"},
}
DOMAIN = {
    "domain": {"type": "str"},
    "domain_file": {"type": "path"},
}
DOMAIN_EXCLUSIVE = ("domain", "domain_file")
ASKED = ("resources", "groups", "flavor", "domain", "domain_file")
"""Of these options, one says what the instance needs; devices by alias come with one of them."""


def agent_module(options, **rules):
    """The module with its options and the common ones, run by a Python that has the package `plimsoll`."""
    module = AnsibleModule(argument_spec={**COMMON, **options}, supports_check_mode=True, **rules)
    if MISSING:
        # A directory that is only called plimsoll can be imported, so a module of the package is probed.
        python = None if has_respawned() else probe_interpreters_for_module(INTERPRETERS, "plimsoll.wire")
        if python:
            respawn_module(python)
        module.fail_json(
            msg=missing_required_lib(
                "plimsoll",
                reason="for all that the module asks of the agent. It comes with the agent, in its Debian package and in the environment /opt/plimsoll of its "
                "wheel; set ansible_python_interpreter to a Python that has it, 3.11 or newer",
            ),
            exception=MISSING,
        )
    given = module.params
    for name in ("consumer", "migration"):
        if given.get(name):
            given[name] = _uuid(given[name])
    if given.get("wait", 0) < 0:
        module.fail_json(msg=f"`wait` is {given['wait']}: give the seconds to wait, 0 or more")
    return module


def _uuid(text):
    """The uuid as the agent writes it, with dashes and in small letters; the agent refuses a text that is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return text


def warn_unused(module, *names):
    """Say of these options, where they are given, that the state has no use for them."""
    for name in names:
        if module.params[name]:
            module.warn(f"`{name}` does nothing with `state: {module.params['state']}`")


@contextmanager
def agent_of(module):
    """The agent of this host. An error of it is the module's failure."""
    try:
        given = module.params
        with Agent(given["socket"], timeout=given["timeout"], made_by="ansible") as agent:
            yield agent
    except PlimsollError as error:
        module.fail_json(
            msg=error.message,
            error=type(error).__name__,
            code=error.code,
            details=dict(error.details),
            key=error.key,
        )


def request_of(params):
    """What the options ask for, as the agent's API takes it. Amounts and extra specs may be texts of templates."""
    asked = _without_none({name: params[name] for name in REQUEST if name != "resources"})
    groups = [] if params["resources"] is None else [{"resources": params["resources"]}]
    groups += asked.pop("groups", [])
    for group in groups:
        if "resources" in group:
            group["resources"] = {name: _number(value) for name, value in group["resources"].items()}
    if groups:
        asked["groups"] = groups
    if "alternatives" in asked:
        asked["alternatives"] = [
            request_of({**dict.fromkeys(REQUEST), **other}) for other in params["alternatives"]
        ]
    specs = asked.get("flavor", {}).get("extra_specs", {})
    specs.update({name: str(value).lower() for name, value in specs.items() if isinstance(value, bool)})
    if "mem_page_size" in asked.get("topology", {}):
        asked["topology"]["mem_page_size"] = _number(asked["topology"]["mem_page_size"])
    return asked


def _without_none(value):
    """The value without the options that were not given."""
    if isinstance(value, dict):
        return {name: _without_none(each) for name, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _number(value):
    """The number that the text is; what is none stays, and the agent says what is wrong with it."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def domain_text(module):
    """The domain's XML; None where no domain is given."""
    if module.params["domain_file"] is None:
        return module.params["domain"]
    try:
        return Path(module.params["domain_file"]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"The domain cannot be read from {module.params['domain_file']}: {error}")


def find_instance(module, agent, consumer="", name=""):
    """The instance of this host with that uuid, or that name; None where there is none."""
    found = [
        each
        for each in agent.instances()
        if (each.uuid == consumer if consumer else name and each.name == name and not each.migration_of)
    ]
    if len(found) > 1:
        module.fail_json(
            msg=f"{name!r} names {len(found)} instances; give the uuid of one as `consumer`",
            instances=[each.uuid for each in found],
        )
    return found[0] if found else None


def named(module, xml):
    """{consumer or name} of the instance that the module is about, as `find_instance` takes it."""
    if module.params["consumer"]:
        return {"consumer": module.params["consumer"]}
    key = domain_key(xml) if xml else ""
    if key and f"<uuid>{key}" in "".join(xml.split()):
        return {"consumer": _uuid(key)}
    return {"name": key or module.params["name"] or ""}


def refusal_of(explained):
    """Why a claim with this explanation would not be granted; empty: it would."""
    if explained.fits:
        return f"Claims are closed: {explained.closed}" if explained.closed else ""
    reasons = [
        f"{each.resource_class or 'the request'} on {each.provider or 'this host'}: {each.reason}"
        for each in explained.shortfalls
    ]
    return "It does not fit: " + "; ".join(reasons)


def wait_until(done, seconds):
    """Ask `done` until it says True or the seconds have passed; its last answer."""
    end = time.monotonic() + seconds
    while not done():
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(POLL_S, left))
    return True


__all__ = [
    "ASKED",
    "DOMAIN",
    "DOMAIN_EXCLUSIVE",
    "REQUEST",
    "NotFound",
    "PlimsollError",
    "agent_module",
    "agent_of",
    "domain_text",
    "encode",
    "find_instance",
    "named",
    "refusal_of",
    "request_of",
    "wait_until",
    "warn_unused",
]
