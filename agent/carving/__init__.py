"""What a reboot takes from cards, and a boot gives back: functions, drivers, types, mediated devices.

The agent writes into the plan file what claims and domains need. `plimsoll devices apply`, which runs as
root, joins that with what the operator declared, compares it with what sysfs shows, and takes the steps of
the plan.
"""
