"""What names and numbers of sysfs look like, so that no path is built from anything else. Pure."""

import re

ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)
"""A PCI address: its domain, bus, slot and function."""

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""The name of a driver, or the id of a type of mediated devices."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
