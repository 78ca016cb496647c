"""What the doctor says of the agent's rights at libvirt, whoever runs the doctor."""

import grp
import os
import pwd
from collections.abc import Iterator

from agent.doctor.check import Check, good, warning
from agent.settings import Settings

GROUP = "libvirt"
"""Who is in it may manage libvirt's guests, by what Debian and others put into polkit's rules."""

SYSTEM_URI = "qemu:///system"


def at_libvirt(settings: Settings) -> Iterator[Check]:
    """Nothing where it is not asked for, or where the agent has not run yet: it is who the state directory is
    of."""
    options = settings.driver.options.get("libvirt", {})
    if not options.get("full_connection", True) or options.get("connection_uri") != SYSTEM_URI:
        return
    try:
        user = pwd.getpwuid(settings.state_path.stat().st_uid)
        group = grp.getgrnam(GROUP)
    except (OSError, KeyError):
        return
    if user.pw_uid == 0 or group.gr_gid in os.getgrouplist(user.pw_name, user.pw_gid):
        yield good("rights", f"{user.pw_name} may manage libvirt.")
        return
    yield warning(
        "rights",
        f"{user.pw_name} reads libvirt and may not manage it: what guests can be given (traits of firmware, "
        "vTPM, disk buses, graphics) is not reported, and mediated devices that a reboot took are not made "
        "again.",
        f"If you want these: usermod -aG {GROUP} {user.pw_name} && systemctl restart plimsoll-agent (it may "
        "then manage all guests). If not: [libvirt] full_connection = false.",
    )
