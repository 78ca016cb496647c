"""libvirt's qemu hook: asks the agent whether a guest may start or come in, and reports guests that end.

It uses the standard library only, and little of it, because each start of a guest waits for it. libvirt kills
a running guest if its hook fails at `reconnect`, and waits for a hook without a limit. Therefore one deadline
covers everything, and only `prepare` and `migrate` can end with another exit code than 0. The hook writes
nothing to standard output: at `migrate` and `restore` libvirt would take that for the domain's new XML.
Source: https://libvirt.org/hooks.html
"""

# Not `socket`: it imports enum, which takes longer than the rest of a call.
import _socket
import os
import select
import time

QUESTIONS = frozenset({("prepare", "begin"), ("migrate", "begin")})
"""The operations at which the agent decides whether the guest may go on."""
NOTICES = frozenset({("release", "end")})
"""The operations of which the agent is only informed."""

SOCKET = "/run/plimsoll/plimsoll.sock"
DEADLINE_S = 5.0
DEADLINE_MAX_S = 60.0
ALLOW, REFUSE = "allow", "refuse"

CPU = "/sys/devices/system/cpu/cpu%d/"
STATES = {"online": b"1", "offline": b"0"}

XML_MAX = 2**20
ANSWER_MAX = 2**20
CHUNK = 2**16
SYSLOG = "/dev/log"
SYSLOG_WARNING, SYSLOG_NOTICE = 3 * 8 + 4, 3 * 8 + 5


class NoDecision(Exception):
    """The agent did not decide; `unanswered` in gate.conf says whether the guest may go on."""


class StartRefused(Exception):
    """The agent refused the guest; the message is the reason."""


class HookConfig:
    """The settings of gate.conf, lines of `key = value`. A missing or invalid setting has its default.

    `problems` has a sentence for each line that is invalid, and for a file that cannot be read.
    """

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
            setting = line.strip()
            if not setting or setting.startswith("#"):
                continue
            key, _, value = (part.strip() for part in setting.partition("="))
            if key == "socket" and value.startswith("/"):
                self.socket = value
            elif key == "unanswered" and value in (ALLOW, REFUSE):
                self.unanswered = value
            elif key == "deadline" and value.replace(".", "", 1).isdecimal():
                self.deadline_s = min(max(float(value), 0.1), DEADLINE_MAX_S)
            else:
                self.problems.append(f"{path}, line {number}: {setting[:80]!r} is not a valid setting")


def main(argv: list[str], config_path: str) -> int:
    """Run the hook with libvirt's arguments; returns the exit code, 1 only if the guest may not start."""
    name, operation, sub_operation = (*argv[1:4], "-", "-", "-")[:3]
    if (operation, sub_operation) not in QUESTIONS | NOTICES:
        return 0
    asks = (operation, sub_operation) in QUESTIONS
    config = HookConfig(config_path)
    for problem in config.problems:
        log_to_syslog(SYSLOG_WARNING, problem)
    try:
        ask_agent(config, operation, sub_operation)
    except StartRefused as refused:
        if asks:
            return refuse_start(name, str(refused))
        log_to_syslog(SYSLOG_NOTICE, f"{operation} of {name}: {refused}")
    except (NoDecision, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        if asks and config.unanswered == REFUSE:
            return refuse_start(
                name, f"the agent did not decide ({reason}), and gate.conf says unanswered = refuse"
            )
        log_to_syslog(SYSLOG_WARNING, f"{operation} of {name} goes on without the agent: {reason}")
    return 0


def refuse_start(name: str, reason: str) -> int:
    """Show the reason to libvirt's caller and log it; returns the exit code."""
    log_to_syslog(SYSLOG_NOTICE, f"{name} may not start: {reason}")
    os.write(2, f"plimsoll: {reason}\n".encode("utf-8", "replace"))
    return 1


def ask_agent(config: HookConfig, operation: str, sub_operation: str) -> None:
    """Return if the guest may go on. Raises StartRefused, NoDecision, OSError, ValueError."""
    deadline = time.monotonic() + config.deadline_s
    try:
        body = request_body(operation, sub_operation, read_xml(deadline))
        status, answer = post(config.socket, body, deadline)
    except TimeoutError:
        raise NoDecision(f"no answer at {config.socket} within {config.deadline_s:g} s") from None
    except (FileNotFoundError, ConnectionError) as error:
        raise NoDecision(f"no agent at {config.socket} ({error.strerror})") from None
    if status == 200:
        set_cpu_power(answer)
        return
    reason = error_message(answer) or f"the agent answered with status {status}"
    if not 400 <= status < 500:  # the agent is not ready, or a service that it needs is away
        raise NoDecision(reason)
    raise StartRefused(reason)


def set_cpu_power(answer: bytes) -> None:
    """Power the guest's CPUs up or down as the agent's answer says; the agent itself may not.

    Raises StartRefused where a CPU cannot be brought online or offline. A governor that cannot be set is only
    logged: the guest runs with it, if slowly.
    """
    if b'"cpus"' not in answer:
        return
    import json  # late: only such an answer needs it

    order = json.loads(answer)["cpu_power"]
    state = str(order["state"])
    for cpu in map(int, order["cpus"]):
        if state in STATES:
            problem = write_below_sys(CPU % cpu + "online", STATES[state])
            if problem:
                raise StartRefused(f"CPU {cpu} cannot be brought {state}: {problem}")
        elif state.replace("_", "").isalpha():
            problem = write_below_sys(CPU % cpu + "cpufreq/scaling_governor", state.encode())
            if problem:
                log_to_syslog(SYSLOG_WARNING, f"CPU {cpu} does not get the governor {state}: {problem}")


def write_below_sys(path: str, value: bytes) -> str:
    """Write the value, unless the file has it; what is wrong, "" where nothing is.

    A file that is missing is no fault: the kernel cannot change that of this CPU.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.read(file, CHUNK).strip() == value:
                return ""
        finally:
            os.close(file)
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, value)
        finally:
            os.close(file)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    return ""


def seconds_left(deadline: float) -> float:
    """Seconds until the deadline, a time of `time.monotonic`. Raises TimeoutError where it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def read_xml(deadline: float) -> str:
    """The domain's XML from standard input. Raises StartRefused if it is too long, TimeoutError."""
    chunks: list[bytes] = []
    size = 0
    while select.select([0], [], [], seconds_left(deadline))[0]:
        chunk = os.read(0, CHUNK)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace")
        chunks.append(chunk)
        size += len(chunk)
        if size > XML_MAX:
            raise StartRefused(f"the domain's XML has more than {XML_MAX} bytes")
    raise TimeoutError


def request_body(operation: str, sub_operation: str, xml: str) -> bytes:
    """The JSON body, made by hand: to import json takes longer than the rest of a call."""
    escapes = {number: f"\\u{number:04x}" for number in range(32)} | {34: '\\"', 92: "\\\\"}
    return (
        f'{{"operation": "{operation}", "sub_operation": "{sub_operation}", '
        f'"xml": "{xml.translate(escapes)}"}}'
    ).encode()


def post(path: str, body: bytes, deadline: float) -> tuple[int, bytes]:
    """(status, body) of the agent's answer. Raises OSError, ValueError where the answer is not HTTP."""
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    agent.settimeout(seconds_left(deadline))
    agent.connect(path)
    agent.sendall(
        b"POST /v1/gate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    answer = b""
    while len(answer) < ANSWER_MAX:
        agent.settimeout(seconds_left(deadline))
        chunk = agent.recv(CHUNK)
        if not chunk:
            break
        answer += chunk
    head, _, rest = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("the answer at the agent's socket is not HTTP")
    return int(words[1]), rest


def error_message(answer: bytes) -> str:
    """The sentence of an error answer on one line, "" if it has none."""
    import json  # late: only an error needs it

    try:
        message = json.loads(answer)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return " ".join(str(message).split())


def log_to_syslog(priority: int, text: str) -> None:
    """Write a line to the system's log. It is lost if the log does not accept it at once: no guest waits."""
    line = f"<{priority}>plimsoll-gate[{os.getpid()}]: {' '.join(text.split())[:2000]}"
    try:
        log = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
        log.setblocking(False)
        log.connect(SYSLOG)
        log.send(line.encode("utf-8", "replace"))
    except OSError:
        return
