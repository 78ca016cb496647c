"""Two hosts of the lab that share one placement: the first one's agent serves it over TLS."""

from kits.lab_node import Node, alone

ADDRESS = "192.168.77.1:8778"
TOKEN = "5c1d0f5e7a3b4c6d8e9f"
SERVING = f"""serve = {ADDRESS},unix:/run/plimsoll/placement.sock
serve_tokens = /etc/plimsoll/placement.tokens
serve_tls_cert = /etc/plimsoll/placement.crt
serve_tls_key = /etc/plimsoll/placement.key
"""
JOINED = f"""[DEFAULT]
compute_driver = libvirt
host = hv2

[placement]
kind = remote
auth_type = admin_token
endpoint_override = https://{ADDRESS}
cafile = /etc/plimsoll/placement.crt
"""


def share_placement(one: Node, two: Node, more: str) -> None:
    """Configure and start both agents; `more` is put below the settings of each."""
    one.run(
        "cd /etc/plimsoll && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hv1 "
        "-addext subjectAltName=DNS:hv1,IP:192.168.77.1 -keyout placement.key -out placement.crt "
        f"2>/dev/null && echo 'hv2 service {TOKEN}' >placement.tokens && "
        "chmod 0600 placement.key placement.tokens && chown plimsoll placement.*"
    )
    one.configure(alone("hv1", SERVING + more).replace("serve = unix:/run/plimsoll/placement.sock\n\n", ""))
    one.start()
    two.write("/etc/plimsoll/placement.crt", one.run("cat /etc/plimsoll/placement.crt", note=False))
    two.run(
        "install -d -m 0700 /etc/credstore && "
        f"install -m 0600 /dev/stdin /etc/credstore/placement.token <<<{TOKEN}"
    )
    two.configure(JOINED + more)
    two.start()
