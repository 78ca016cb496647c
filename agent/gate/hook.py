"""libvirt's qemu hook: asks the agent whether a guest may start or come in, and tells it of one that went.

Standard library only, and little of that, because every start of a guest waits for it. libvirt kills a
running guest when this fails at `reconnect`, and waits for it without a bound; so there is one deadline for
all of it, and only `prepare` and `migrate` can ever end with anything but 0. Nothing is written to standard
output: at `migrate` and `restore` it would take the place of the domain's XML.
Source: https://libvirt.org/hooks.html
"""

# Not `socket`: what that adds is mostly enum, which takes longer to import than all else here to run.
import _socket
import os
import select
import time

DECIDES = frozenset({("prepare", "begin"), ("migrate", "begin")})
TELLS = frozenset({("release", "end")})

SOCKET = "/run/plimsoll/plimsoll.sock"
DEADLINE_S = 5.0
DEADLINE_MAX_S = 60.0
ALLOW, REFUSE = "allow", "refuse"

XML_MAX = 2**20
ANSWER_MAX = 2**20
CHUNK = 2**16
SYSLOG = "/dev/log"
SYSLOG_WARNING, SYSLOG_NOTICE = 3 * 8 + 4, 3 * 8 + 5
CLOSED_STATUSES = frozenset({500, 502, 503})
"""What says nothing about the guest: the agent is not ready, or something that it needs is away."""


class Silent(Exception):
    """No decision was to be had; the settings say what becomes of the guest."""


class StartRefused(Exception):
    """The guest may not start; the message says why."""


class Config:
    """What gate.conf says, in lines of `key = value`; what it says not or wrongly is the default."""

    def __init__(self, path: str) -> None:
        self.socket, self.deadline_s, self.unanswered = SOCKET, DEADLINE_S, ALLOW
        self.problems: list[str] = []
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer than all of this
                lines = file.read(CHUNK).splitlines()
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self.problems.append(f"{path} cannot be read: {error}")
            return
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if text and not text.startswith("#") and not self._take(text):
                self.problems.append(f"{path}, line {number}: {text[:80]!r} is not understood")

    def _take(self, line: str) -> bool:
        key, _, value = (part.strip() for part in line.partition("="))
        if key == "socket" and value.startswith("/"):
            self.socket = value
        elif key == "unanswered" and value in (ALLOW, REFUSE):
            self.unanswered = value
        elif key == "deadline" and value.replace(".", "", 1).isdecimal():
            self.deadline_s = min(max(float(value), 0.1), DEADLINE_MAX_S)
        else:
            return False
        return True


def main(argv: list[str], config_path: str) -> int:
    """The exit code: 1 only where the guest may not start, whatever else happens."""
    name, operation, sub_operation = (*argv[1:4], "-", "-", "-")[:3]
    if (operation, sub_operation) not in DECIDES | TELLS:
        return 0
    decides = (operation, sub_operation) in DECIDES
    config = Config(config_path)
    for problem in config.problems:
        say(SYSLOG_WARNING, problem)
    try:
        ask(config, operation, sub_operation)
    except StartRefused as refused:
        if decides:
            return refuse(name, str(refused))
        say(SYSLOG_NOTICE, f"{operation} of {name}: {refused}")
    except (Silent, OSError, ValueError) as error:
        return unanswered(config, name, operation, str(error) or type(error).__name__, decides=decides)
    return 0


def unanswered(config: Config, name: str, operation: str, why: str, *, decides: bool) -> int:
    if decides and config.unanswered == REFUSE:
        return refuse(name, f"the agent did not decide ({why}), and unanswered = refuse in gate.conf")
    say(SYSLOG_WARNING, f"{operation} of {name} goes on without the agent: {why}")
    return 0


def refuse(name: str, why: str) -> int:
    say(SYSLOG_NOTICE, f"{name} may not start: {why}")
    os.write(2, f"plimsoll: {why}\n".encode("utf-8", "replace"))
    return 1


def ask(config: Config, operation: str, sub_operation: str) -> None:
    """Returns if the guest may go on. Raises Refused, Silent, OSError."""
    ends = time.monotonic() + config.deadline_s
    try:
        body = body_of(operation, sub_operation, read_xml(ends))
        status, answer = exchange(config.socket, body, ends)
    except TimeoutError:
        raise Silent(f"no answer at {config.socket} within {config.deadline_s:g} s") from None
    except (FileNotFoundError, ConnectionError) as error:
        raise Silent(f"no agent at {config.socket} ({error.strerror})") from None
    if status == 200:
        return
    if status in CLOSED_STATUSES or not 400 <= status < 500:
        raise Silent(message_of(answer) or f"the agent answered with status {status}")
    raise StartRefused(message_of(answer) or f"the agent answered with status {status}")


def left(ends: float) -> float:
    """Seconds, more than none. Raises TimeoutError."""
    seconds = ends - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def read_xml(ends: float) -> str:
    """Standard input, whole. Raises Refused for what is too long to be a domain, TimeoutError."""
    parts: list[bytes] = []
    size = 0
    while select.select([0], [], [], left(ends))[0]:
        chunk = os.read(0, CHUNK)
        if not chunk:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(chunk)
        size += len(chunk)
        if size > XML_MAX:
            raise StartRefused(f"its XML has more than {XML_MAX} bytes")
    raise TimeoutError


def body_of(operation: str, sub_operation: str, xml: str) -> bytes:
    """JSON written by hand: to import what writes it takes longer than the rest of a call."""
    escapes = {number: f"\\u{number:04x}" for number in range(32)} | {34: '\\"', 92: "\\\\"}
    return (
        f'{{"operation": "{operation}", "sub_operation": "{sub_operation}", '
        f'"xml": "{xml.translate(escapes)}"}}'
    ).encode()


def exchange(path: str, body: bytes, ends: float) -> tuple[int, bytes]:
    """(status, body) of the agent's answer. Raises OSError, ValueError for what is no HTTP."""
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    agent.settimeout(left(ends))
    agent.connect(path)
    agent.sendall(
        b"POST /v1/gate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    answer = b""
    while len(answer) < ANSWER_MAX:
        agent.settimeout(left(ends))
        chunk = agent.recv(CHUNK)
        if not chunk:
            break
        answer += chunk
    head, _, rest = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("what answers at the socket does not speak HTTP")
    return int(words[1]), rest


def message_of(answer: bytes) -> str:
    """The sentence in the agent's answer, "" if there is none; only a refusal takes the time for this."""
    import json

    try:
        told = json.loads(answer)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return " ".join(str(told).split())


def say(priority: int, text: str) -> None:
    """To the system's log, if it takes it at once."""
    line = f"<{priority}>plimsoll-gate[{os.getpid()}]: {' '.join(text.split())[:2000]}"
    try:
        log = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        log.setblocking(False)
        log.connect(SYSLOG)
        log.send(line.encode("utf-8", "replace"))
    except OSError:
        return  # nobody logs, or too much: no guest waits for that
