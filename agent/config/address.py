"""The address of the read-only HTTP listener: an IP address and a port, never a host name."""

import ipaddress
from typing import NamedTuple, Self

from agent.errors import SettingsError

PORT_MAX = 65535


class Address(NamedTuple):
    """`host` is an IP address as text; port 0 stands for any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `127.0.0.1:9464`, `[::1]:9464` or `localhost:9464`. Raises SettingsError."""
        host, colon, port = text.strip().rpartition(":")
        if host == "localhost":
            host = "127.0.0.1"
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
                raise ValueError("no port")
            if (address.version == 6) != host.startswith("["):
                raise ValueError("brackets")
        except ValueError:
            raise SettingsError(
                f"[http] listen = {text!r} is not an address; give an IP address and a port, such as "
                "127.0.0.1:9464 or [::1]:9464.",
                group="http",
                option="listen",
                value=text,
            ) from None
        return cls(str(address), int(port))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
