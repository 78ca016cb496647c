"""What the pages of the modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """The common options and attributes; the options of a request, and of a domain."""

    DOCUMENTATION = r"""
options:
  socket:
    description:
      - The agent's socket, or C(ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]).
      - Without it, it is that of the environment variable E(PLIMSOLL_SOCKET), else C(/run/plimsoll/plimsoll.sock).
    type: str
  timeout:
    description: How many seconds a request to the agent may take.
    type: float
    default: 30
requirements:
  - The Plimsoll agent on the host. Its Python package C(plimsoll) is found in the module's Python, in C(/opt/plimsoll) and in C(/usr/bin/python3).
attributes:
  action_group:
    description: Use C(group/plimsoll.host.agent) in C(module_defaults) to set defaults for all modules of the collection.
    support: full
    membership: [plimsoll.host.agent]
"""

    REQUEST = r"""
options:
  resources:
    description: "What is needed from any of the host's providers: amounts by resource class. Not with O(flavor)."
    type: dict
  groups:
    description: Request groups, as Placement has them. Not with O(flavor).
    type: list
    elements: dict
    suboptions:
      suffix:
        description: The name of the group. A group with a name comes from one provider.
        type: str
      resources:
        description: Amounts by resource class.
        type: dict
      required:
        description: Traits, all of which must hold; V(TRAIT), V(in:TRAIT,TRAIT) (one of), V(!TRAIT) (not).
        type: list
        elements: str
      member_of:
        description: Aggregates; a uuid, or V(in:UUID,UUID) (one of).
        type: list
        elements: str
      numa_policy:
        description: How near the provider must be to the guest's NUMA cells.
        type: str
        choices: [required, preferred, legacy, socket]
  group_policy:
    description: Whether the groups may share a provider (V(none)) or not (V(isolate)).
    type: str
    choices: [none, isolate]
  same_subtree:
    description: Lists of suffixes whose groups must come from one subtree of the host.
    type: list
    elements: list
  root_required:
    description: Traits that the host's root provider must have, or with C(!) must not.
    type: list
    elements: str
  topology:
    description: The guest's CPUs, memory and NUMA cells, as a flavor's C(hw:) extra specs ask for them.
    type: dict
    suboptions:
      cpu_policy:
        description: Whether the guest's CPUs are pinned.
        type: str
        choices: [shared, dedicated, mixed]
      cpu_thread_policy:
        description: How pinned CPUs share cores.
        type: str
        choices: [prefer, isolate, require]
      cells:
        description: The number of NUMA cells of the guest.
        type: int
      cell_cpus:
        description: The guest CPUs of each cell, as CPU sets.
        type: list
        elements: str
      cell_memory_mb:
        description: The memory of each cell.
        type: list
        elements: int
      dedicated_cpus:
        description: The guest CPUs that are pinned, with O(topology.cpu_policy=mixed).
        type: str
      mem_page_size:
        description: KiB, or V(small), V(large), V(any).
        type: str
      pci_numa_policy:
        description: How near PCI devices must be; takes precedence over the policy of their alias.
        type: str
        choices: [required, preferred, legacy, socket]
      isolate_emulator:
        description: One CPU of the request is for the emulator's threads alone.
        type: bool
  pci:
    description: PCI devices, by the aliases of the agent's settings.
    type: list
    elements: dict
    suboptions:
      alias:
        description: The alias.
        type: str
        required: true
      count:
        description: How many; one if it is not given.
        type: int
  flavor:
    description: What is needed, as a flavor of nova. In place of O(resources) and O(groups).
    type: dict
    suboptions:
      vcpus:
        description: CPUs.
        type: int
        required: true
      memory_mb:
        description: Memory.
        type: int
        required: true
      disk_gb:
        description: Disk.
        type: int
      extra_specs:
        description: C(resources:VGPU), C(trait:...), C(hw:cpu_policy) and others, as in nova.
        type: dict
  image:
    description: Properties of the guest's image, as glance has them. With O(flavor).
    type: dict
  alternatives:
    description:
      - What is asked for where the request, and the alternatives before, do not fit; each has the options of a request, such as
        O(resources), O(groups) or O(flavor).
    type: list
    elements: dict
  project_id:
    description: The project of the instance, in Placement.
    type: str
  user_id:
    description: The user of the instance, in Placement.
    type: str
  consumer_type:
    description: The type of the consumer, in Placement.
    type: str
"""

    DOMAIN = r"""
options:
  domain:
    description: The XML of a libvirt domain, which says what is needed. Options of a request add to it.
    type: str
  domain_file:
    description: The same, in a file on the host.
    type: path
"""
