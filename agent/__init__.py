"""Plimsoll: the load line for hypervisors."""

__version__ = "0.1.0"
