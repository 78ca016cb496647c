"""A deterministic simulator: whole hosts and Placement in one process, with a virtual clock.

One task runs at a time. Every place at which a thread of the agent waits (a lock, a turn, a request, a write
to the journal, a timer) is a choice that a seed draws, and so are the faults. An oracle checks the laws of
the book; it looks only at the tests' own guests, at the journals' rows and at Placement's records.

tasks       tasks, the virtual clock, locks and conditions
patches     the agent's modules use those instead of threading, time, random and uuid
disk        the agent's journal, a file
journal     the journal of the served cores that are the simulated Placement, in memory
network     Placement's processes, and what can become of a request
machine     a host: hardware, guests, the agent's process
oracle      the laws
story       the vocabulary in which a history is told, by hand or by a seed
seeds       histories drawn by a seed; shrinking
laws_off    each law of the agent turned off, to show that the simulator notices
"""
