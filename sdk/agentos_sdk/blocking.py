"""The blocking client: dict in, dict out, standard library only, one call at a time.

Each agent imports it, and few modules with it: ``_socket`` is what ``socket`` is made of, without ``enum`` and
``selectors``, and ``json`` is loaded by the first call that needs it.
"""

from __future__ import annotations

import os
import stat
import struct
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket

from .clients.client_calls import Calls
from .errors import CallError, ConnectionFailed, from_reply
from .frames import HEADER, MAGIC, frame

TYPE_CHECKING = False  # as in typing; its import would be a sixth of an idle agent's memory
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from .clients.state import State

    Reply = dict[str, Any]

MAX_PATIENCE = 1e9  # seconds; a socket takes no longer time than about that
NOOP, THINK, HELLO, EXIT = 0x00, 0x01, 0xFE, 0xFF  # as in opcodes, which needs enum


def default_socket() -> str:
    """The kernel's default socket: ``AGENTOS_SOCKET``, else that of the current directory's project."""
    if path := os.environ.get("AGENTOS_SOCKET"):
        return path
    from .project import find_project

    return find_project().socket


class AgentOSClient(Calls):
    """A blocking connection to the kernel; a context manager. Its calls are the methods of :class:`Calls`.

    Every method returns the reply as a dict, also if the call failed: then ``success`` is false and ``error`` and
    ``code`` say why. But ``kill`` returns whether the agent has been stopped, and ``list_agents`` a list; it and the
    streams raise the call's error. Connection errors raise :class:`ConnectionFailed`. ``timeout`` is how many seconds a
    reply may take beyond the call's own waiting time; None waits without limit.

    With ``name``, ``level`` or ``permissions`` it is a guest on every connection, with that name and at most those
    rights. If the kernel refuses that, the connection is closed and the ``CallError`` raised. What it doesn't read of a
    ``kept`` mailbox waits for the next guest of its name; its streams, whose connections are others, don't have it.
    """

    def __init__(
        self,
        socket_path: str | None = None,
        timeout: float | None = None,
        *,
        name: str | None = None,
        level: str | None = None,
        permissions: Mapping[str, object] | None = None,
        mailbox: str = "memory",
    ) -> None:
        self.socket_path = socket_path or default_socket()
        self.timeout = timeout
        self.agent_id: int | None = None  # our id, from the first reply on
        self._socket: socket | None = None
        self._hellos: list[bytes] = []  # the HELLOs that hold for all our connections, repeated on every new one
        fields = {"as": name, "level": level, "permissions": permissions}
        if given := {field: value for field, value in fields.items() if value is not None}:
            self._hellos.append(encode({"protocol": 1, **given}))
        self._own_hello = None if mailbox == "memory" else encode({"protocol": 1, **given, "mailbox": mailbox})

    def connect(self) -> bool:
        """Connect and return True; raises :class:`ConnectionFailed` with advice."""
        if self._socket is None:
            hellos = [self._own_hello, *self._hellos[1:]] if self._own_hello else self._hellos
            self._socket = open_connection(self.socket_path, hellos, self.timeout)
        return True

    def disconnect(self) -> None:
        """Close the connection; later calls connect again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> AgentOSClient:
        self.connect()
        return self

    def __exit__(self, *exc: object) -> None:
        self.disconnect()

    @property
    def state(self) -> State:
        """The global keys of the kernel's state as a mapping; ``state.agent`` and ``state.session`` are the others."""
        from .clients.state import State

        return State(self)

    def messages(self, lease: float = 60.0) -> Iterator[dict[str, Any]]:
        """The messages of the own mailbox as they come, each acknowledged at the end of the loop's body.

        A body that takes longer than ``lease`` seconds, raises or leaves the loop leaves its message unacknowledged: it
        comes again, with ``attempt`` one higher. Raises the call's error.
        """
        from .clients.mail import read

        return read(self, lease)

    # -- The connection --------------------------------------------------------------------------------------------

    def call(self, op: int, body: bytes = b"", wait: float | None = 0.0) -> bytes:
        """Make any call by opcode with an encoded body; returns the reply's body.

        ``wait`` is the call's own waiting time.
        """
        self.connect()
        assert self._socket is not None
        lasts = op == HELLO and is_lasting(body) and body not in self._hellos
        if lasts:
            self._hellos.append(body)  # before the reply: if that is lost, the rights stay reduced
        self._socket.settimeout(find_patience(self.timeout, wait))
        try:
            number, got, reply = exchange(self._socket, op, body)
        except TimeoutError:
            self.disconnect()  # a late reply would be taken for the next call's
            raise ConnectionFailed(f"the kernel at {self.socket_path} gave no reply in {self.timeout:g} s") from None
        except OSError as error:
            self.disconnect()
            raise ConnectionFailed(f"the connection to the kernel at {self.socket_path} broke: {error}") from None
        if got != op:  # refused or a broken stream: the kernel sends why and closes
            self.disconnect()
            raise ConnectionFailed(f"the kernel at {self.socket_path} refused: {error_text(reply)}")
        self.agent_id = number
        if lasts and not is_success(reply):
            self._hellos.pop()
        if ends_connection(reply) and reply != body:
            self.disconnect()
            raise ConnectionFailed(f"the kernel at {self.socket_path} ended the connection: {error_text(reply)}")
        return reply

    def request(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Any:
        """Make any call by opcode with a JSON body; fields that are None are left out."""
        return self._send(op, {name: value for name, value in fields.items() if value is not None}, wait)

    def _send(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Any:
        body = self.call(op, encode(fields), wait)
        try:
            return parse_reply(body)
        except ValueError:
            self.disconnect()
            raise ConnectionFailed(f"what answers at {self.socket_path} is no AgentOS kernel") from None

    def _make_call(
        self,
        op: int,
        given: dict[str, Any],
        named: Mapping[str, str] = {},
        wait: float | None = 0.0,
        null: str = "",
        convert: Callable[[Any], object] | None = None,
    ) -> Any:
        reply = self._send(op, self._fields(op, given, named, null), wait)
        return reply if convert is None else convert(reply)

    def _open_stream(self, op: int, given: dict[str, Any], named: Mapping[str, str] = {}) -> Any:
        from .encoding.chunks import STREAMS

        return STREAMS[op](self.socket_path, self._fields(op, given, named), self._hellos)

    def _prepare(self, op: int, fields: dict[str, Any]) -> dict[str, Any]:
        if op != THINK:
            return super()._prepare(op, fields)
        from .clients.question import question

        return question(fields)

    def echo(self, message: str | bytes) -> str:
        """Send bytes through the kernel and back."""
        data = message.encode() if isinstance(message, str) else message
        return self.call(NOOP, data).decode(errors="replace")

    noop = echo

    def hello(
        self,
        protocol: int = 1,
        *,
        as_: str | None = None,
        level: str | None = None,
        permissions: Mapping[str, object] | None = None,
        approval_timeout: float | None = None,
    ) -> Reply:
        """Our id and name, and the kernel's version. Protocol 2 isn't supported by this client.

        ``as_``, ``level`` and ``permissions`` turn the operator's connection into a guest's, with that name and at most
        those rights. ``approval_timeout`` is how many seconds calls wait for a person where a rule asks; 0: not at all.
        All this is permanent and also applies to connections that this client opens later.
        """
        reply: Reply = self._make_call(HELLO, locals(), {"as_": "as"})
        return reply

    def exit(self) -> str:
        """End the connection; the kernel closes it."""
        reply = self.call(EXIT).decode()
        self.disconnect()
        return reply


def find_patience(timeout: float | None, wait: float | None) -> float | None:
    """Seconds that a reply may take; None: any time. A call's own time is any number here: the kernel judges it."""
    if timeout is None or wait is None:
        return None
    seconds = timeout + max(0.0, wait)
    return seconds if seconds < MAX_PATIENCE else None


def open_connection(path: str, hellos: Sequence[bytes] = (), timeout: float | None = None) -> socket:
    """Connect to the kernel at ``path``; raises :class:`ConnectionFailed` if there is none or it isn't ours.

    ``hellos`` are sent first: rights given up on one connection must stay given up on the next. If one of them fails,
    the connection is closed and the kernel's error raised.
    """
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(path)
        check_owner(sock, path)
        sock.settimeout(timeout)
        for body in hellos:
            send_hello(sock, path, body)
        sock.settimeout(None)
    except OSError as error:
        sock.close()
        raise connection_error(path, error) from None
    except BaseException:
        sock.close()
        raise
    return sock


def send_hello(sock: socket, path: str, body: bytes) -> None:
    """Send HELLO; raises the kernel's ``CallError`` if it fails."""
    _, op, reply = exchange(sock, HELLO, body)
    if op != HELLO:
        raise ConnectionFailed(f"the kernel at {path} refused: {error_text(reply)}")
    try:
        check_reply(reply)
    except ValueError:
        raise ConnectionFailed(f"what answers at {path} is no AgentOS kernel") from None


def is_lasting(body: bytes) -> bool:
    """Whether a HELLO makes its caller a guest, with reduced rights, or says how long its calls wait for a person."""
    try:
        return not {"as", "level", "permissions", "approval_timeout"}.isdisjoint(parse(body))
    except (ValueError, TypeError):
        return False  # the kernel refuses it as well


def connection_error(path: str, error: OSError) -> ConnectionFailed:
    """The exception for a failed connection attempt."""
    if isinstance(error, ConnectionFailed):
        return error
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        if os.environ.get("AGENTOS_SOCKET"):
            return ConnectionFailed(f"no kernel at {path}: start one with `agentos run`")
        from .project import describe_missing_kernel

        return ConnectionFailed(describe_missing_kernel(path))
    return ConnectionFailed(f"no way to the kernel at {path}: {error.strerror or error}")


def check_owner(sock: Any, path: str) -> None:
    """Check the listener's uid, before anything is sent: it has to be this user or root.

    Another uid's socket has to be named, by ``AGENTOS_SOCKET`` or by the caller, and not by a configuration file; and
    it must not be in a world-writable directory, where any user may have created it. (In a jail the kernel's uid is
    another one.)
    """
    _, uid, _ = struct.unpack("3i", sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))
    if uid in (0, os.geteuid()):
        return
    shared = os.stat(os.path.dirname(path) or ".").st_mode & stat.S_IWOTH
    if path == os.environ.get("AGENTOS_SOCKET") and not shared:
        return
    from .project import is_project_socket, trusted_uids

    if uid not in trusted_uids() and (shared or is_project_socket(path)):
        advice = "choose another with --socket, or name it in AGENTOS_SOCKET if you trust that user"
        raise ConnectionFailed(f"{path} is a socket of uid {uid}, not yours: {advice}")


def exchange(sock: socket, op: int, body: bytes) -> tuple[int, int, bytes]:
    """Send a frame and receive the next one."""
    try:  # noqa: SIM105 - suppress would be one module more for each agent
        sock.sendall(frame(0, op, body))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the kernel may have sent an error before it closed
    return receive(sock)


def receive(sock: socket) -> tuple[int, int, bytes]:
    """The next frame: id, opcode, body. Raises ``OSError`` if the peer closes early or isn't a kernel."""
    magic, number, op, length = HEADER.unpack(receive_exactly(sock, HEADER.size))
    if magic != MAGIC:
        raise OSError("what answers there is no AgentOS kernel")
    return number, op, receive_exactly(sock, length)


def receive_exactly(sock: socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            raise OSError("closed by the kernel")
        data += part
    return bytes(data)


def encode(fields: Mapping[str, object]) -> bytes:
    """A request as JSON."""
    from json import dumps

    try:
        return dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate can't be UTF-8; JSON escapes it (\ud83d)
        return dumps(fields).encode()


def parse(body: bytes) -> Any:
    """The values of a JSON text; raises ``ValueError`` if it is none."""
    from json import loads

    return loads(body)


def parse_reply(body: bytes) -> Any:
    """The object or array of a reply; raises ``ValueError`` if it is anything else."""
    try:
        found = parse(body)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(found, dict | list):
        raise ValueError("a reply that is no object")
    return found


def check_reply(body: bytes) -> Reply:
    """A reply as a dict; a failed reply is raised as its exception. Raises ``ValueError`` if it is none."""
    reply: Reply = parse_reply(body)
    if not isinstance(reply, dict):
        raise ValueError("a reply that is no object")
    if not reply.get("success"):
        raise from_reply(reply)
    return reply


def is_success(body: bytes) -> bool:
    try:
        return bool(check_reply(body))
    except (CallError, ValueError):
        return False


def ends_connection(reply: bytes) -> bool:
    """Whether this reply ends the connection: the kernel couldn't read what it was sent."""
    if not reply.startswith(b'{"success":false,') or len(reply) > 4096:
        return False
    try:
        return parse_reply(reply).get("code") in ("bad_frame", "too_large")
    except ValueError:
        return False  # the caller says that it is no reply


def error_text(body: bytes) -> str:
    try:
        return str(check_reply(body))
    except CallError as error:
        return str(error)
