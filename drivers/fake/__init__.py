"""The fake driver: a described host, for tests and to try Plimsoll without a hypervisor.

CONTRIBUTING.md has the recipe for a new resource class or kind of device.
"""
