"""The devices of this host in the shapes of the local API, and the requests that cordon them."""

import time
from collections.abc import Callable, Iterable

from agent.api.shapes.devices import CordonShape, DeviceHealthShape, DevicesShape
from agent.api.views import moment
from agent.json_checks import read_object, read_text
from agent.providers.device_health import DeviceHealth, HealthState, Symptom
from agent.state.cordon import ADDRESS_CHARS_MAX, REASON_CHARS_MAX, Cordon
from agent.tracker.cordons import OfferedDevice


def read_cordon_body(body: object, uid: int) -> Cordon:
    """The cordon that a user asks for. Raises UsageError."""
    given = read_object(body, "", ("address", "reason"))
    reason = read_text(given.get("reason", ""), "reason", longest=REASON_CHARS_MAX)
    return Cordon(_address(given.get("address")), reason, uid, time.time())


def read_clear_body(body: object) -> str:
    """The address of the device that is to be offered again. Raises UsageError."""
    return _address(read_object(body, "", ("address",)).get("address"))


def cordon_view(cordon: Cordon) -> CordonShape:
    """A cordon."""
    return {
        "address": cordon.address,
        "reason": cordon.reason,
        "uid": cordon.uid,
        "since": moment(cordon.at),
    }


def health_view(health: DeviceHealth) -> DeviceHealthShape:
    """Why a device is unhealthy."""
    return {
        "address": health.address,
        "symptoms": [symptom.value for symptom in Symptom if symptom in health.causes],
        "reason": health.reason,
        "since": moment(health.since),
        "recovering": health.state is HealthState.RECOVERING,
    }


def devices_view(devices: Iterable[OfferedDevice], name_of: Callable[[str], str]) -> DevicesShape:
    """All devices; `name_of` returns a consumer's name, "" where it has none."""
    return {
        "devices": [
            {
                "unit": device.unit,
                "resource_class": device.resource_class,
                "provider": device.provider,
                "holder": device.holder,
                "holder_name": name_of(device.holder) if device.holder else "",
                "cordon": cordon_view(device.cordon) if device.cordon else None,
                "health": health_view(device.health) if device.health else None,
            }
            for device in devices
        ]
    }


def _address(value: object) -> str:
    text = read_text(value, "address", None, "the address of a device", ADDRESS_CHARS_MAX)
    address, slash, place = text.partition("/")
    return f"{address.lower()}{slash}{place}"
