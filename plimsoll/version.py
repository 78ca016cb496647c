"""The version of the package, which is that of the agent of the same release."""

__version__ = "0.1.0"
