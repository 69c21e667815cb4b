"""The blocking client: dict in, dict out, standard library only, one call at a time."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence

from .errors import CallError, ConnectionFailed, from_reply
from .frames import HEADER, MAGIC, frame
from .opcodes import Op

TYPE_CHECKING = False  # as in typing; its import would be a sixth of an idle agent's memory
if TYPE_CHECKING:
    from typing import Any, Literal, Unpack

    from .chunks import Deltas, Outputs
    from .question import ImageFile, More, Options

    Reply = dict[str, Any]
    Encoding = Literal["utf-8", "base64"]

MANY_ESCAPES = 1 << 19  # escapes; a kernel refuses bodies with a million
WAY_IN = 10.0  # seconds allowed for entering a jail, beyond the command's own timeout


def default_socket() -> str:
    """The kernel's default socket: ``AGENTOS_SOCKET``, else in the user's runtime directory, else in /tmp."""
    if told := os.environ.get("AGENTOS_SOCKET"):
        return told
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{runtime}/agentos.sock"
    return "/tmp/agentos.sock"


class AgentOSClient:
    """A blocking connection to the kernel; a context manager.

    Every method returns the reply as a dict, also if the call failed: then ``success`` is false and ``error`` and
    ``code`` say why. Connection errors raise :class:`ConnectionFailed`. ``timeout`` is how many seconds a reply may
    take beyond the call's own waiting time; None waits without limit.

    With ``name``, ``level`` or ``permissions`` it is a guest on every connection, with that name and at most those
    rights. If the kernel refuses that, the connection is closed and the ``CallError`` raised.
    """

    def __init__(
        self,
        socket_path: str | None = None,
        timeout: float | None = None,
        *,
        name: str | None = None,
        level: str | None = None,
        permissions: Mapping[str, object] | None = None,
    ) -> None:
        self.socket_path = socket_path or default_socket()
        self.timeout = timeout
        self.agent_id: int | None = None  # our id, from the first reply on
        self._socket: socket.socket | None = None
        self._gave: list[bytes] = []  # the HELLOs that reduce our rights, repeated on every connection
        gives = {"as": name, "level": level, "permissions": permissions}
        if given := {field: value for field, value in gives.items() if value is not None}:
            self._gave.append(json.dumps({"protocol": 1, **given}).encode())

    def connect(self) -> bool:
        """Connect and return True; raises :class:`ConnectionFailed` with advice."""
        if self._socket is None:
            self._socket = dial(self.socket_path, self._gave, self.timeout)
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

    # -- The connection --------------------------------------------------------------------------------------------

    def call(self, op: int, body: bytes = b"", wait: float | None = 0.0) -> bytes:
        """Make any call by opcode with an encoded body; returns the reply's body.

        ``wait`` is the call's own waiting time.
        """
        self.connect()
        assert self._socket is not None
        gives = op == Op.HELLO and gives_away(body) and body not in self._gave
        if gives:
            self._gave.append(body)  # before the reply: if that is lost, the rights stay reduced
        self._socket.settimeout(None if self.timeout is None or wait is None else self.timeout + wait)
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
            raise ConnectionFailed(f"the kernel at {self.socket_path} refused: {reason(reply)}")
        self.agent_id = number
        if gives and not succeeded(reply):
            self._gave.pop()
        if ended(reply) and reply != body:
            self.disconnect()
            raise ConnectionFailed(f"the kernel at {self.socket_path} ended the connection: {reason(reply)}")
        return reply

    def request(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Any:
        """Make any call by opcode with a JSON body; fields that are None are left out."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self._json(self.call(op, json.dumps(given).encode(), wait))

    def _json(self, reply: bytes) -> Any:
        try:
            return json.loads(reply)
        except ValueError:
            self.disconnect()
            raise ConnectionFailed(f"what answers at {self.socket_path} is no AgentOS kernel") from None

    def echo(self, message: str | bytes) -> str:
        """Send bytes through the kernel and back."""
        data = message.encode() if isinstance(message, str) else message
        return self.call(Op.NOOP, data).decode(errors="replace")

    noop = echo

    def hello(
        self,
        protocol: int = 1,
        *,
        as_: str | None = None,
        level: str | None = None,
        permissions: Mapping[str, object] | None = None,
    ) -> Reply:
        """Our id and name, and the kernel's version. Protocol 2 isn't supported by this client.

        The other arguments turn the operator's connection into a guest's, with that name and at most those rights. This
        is permanent and also applies to connections that this client opens later.
        """
        return self._dict(Op.HELLO, {"protocol": protocol, "as": as_, "level": level, "permissions": permissions})

    def exit(self) -> str:
        """End the connection; the kernel closes it."""
        reply = self.call(Op.EXIT).decode()
        self.disconnect()
        return reply

    # -- Agents ----------------------------------------------------------------------------------------------------

    def spawn(
        self,
        name: str,
        script: str | None = None,
        sandboxed: bool = True,
        network: bool = False,
        limits: Mapping[str, object] | None = None,
        restart_policy: str | None = None,
        *,
        command: Sequence[str] | None = None,
        **more: object,
    ) -> Reply:
        """Start an agent: ``script`` (Python) or ``command`` (argv); ``more`` are further fields of SPAWN.

        Relative paths are relative to this process.
        """
        fields = {
            "name": name,
            "script": script,
            "command": list(command) if command is not None else None,
            "sandboxed": sandboxed,
            "network": network,
            "limits": limits,
            "restart_policy": restart_policy,
            **more,
        }
        return self._dict(Op.SPAWN, absolute(fields), wait=None)

    def kill(self, name: str | None = None, agent_id: int | None = None, grace: float | None = None) -> bool:
        """Stop an agent for good, and return whether that was done; ``request(Op.KILL, ...)`` tells why not.

        ``grace`` is the time between SIGTERM and SIGKILL, in seconds.
        """
        return bool(self._dict(Op.KILL, {"name": name, "id": agent_id, "grace": grace}, wait=None).get("killed"))

    def wait(self, name: str | None = None, agent_id: int | None = None, timeout: float | None = None) -> Reply:
        """Wait until an agent has ended for good."""
        return self._dict(Op.WAIT, {"name": name, "id": agent_id, "timeout": timeout}, wait=timeout)

    def pause(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Stop (suspend) an agent's processes."""
        return self._dict(Op.PAUSE, {"name": name, "id": agent_id})

    def resume(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Continue a paused agent."""
        return self._dict(Op.RESUME, {"name": name, "id": agent_id})

    def list_agents(self, all: bool = False) -> list[Reply]:
        """The agents that are alive or will be restarted; with ``all`` also those that have ended for good.

        Raises the call's error, since the reply is a list and no dict.
        """
        reply: list[Reply] | Reply = self.request(Op.LIST, {"all": True} if all else {})
        if isinstance(reply, dict):
            raise from_reply(reply)
        return reply

    def tree(self) -> Reply:
        """The supervision tree, nested."""
        return self._dict(Op.TREE, {})

    def inspect(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Everything about one agent: how it was started, its isolation, limits and usage."""
        return self._dict(Op.INSPECT, {"name": name, "id": agent_id})

    def metrics(self) -> Reply:
        """Metrics of the whole kernel; operator only."""
        return self._dict(Op.METRICS_SYSTEM, {})

    def get_permissions(self, agent_id: int | None = None) -> Reply:
        """The permissions of an agent, or our own, and the sets above that limit them."""
        return self._dict(Op.GET_PERMS, {"agent_id": agent_id})

    def set_permissions(
        self,
        permissions: Mapping[str, object] | str | None = None,
        level: str | None = None,
        agent_id: int | None = None,
    ) -> Reply:
        """Change the permissions of an agent that we spawned: to a set, or by the name of a level or a set."""
        return self._dict(Op.SET_PERMS, {"permissions": permissions, "level": level, "agent_id": agent_id})

    def explain(self, agent: str | int, call: str, args: Mapping[str, object] | None = None) -> Reply:
        """What would be decided if an agent made a call, and by which rule; nothing is executed."""
        return self._dict(Op.EXPLAIN, {"agent": agent, "call": call, "args": args})

    def get_audit_log(
        self,
        category: str | None = None,
        agent_id: int | None = None,
        since_id: int | None = None,
        limit: int = 100,
    ) -> Reply:
        """The newest ``entries`` of the audit log, oldest first; with ``since_id`` the first entries after that one."""
        fields = {"category": category, "agent_id": agent_id, "since_id": since_id, "limit": limit}
        return self._dict(Op.GET_AUDIT_LOG, fields)

    def set_audit_config(self, **switches: bool) -> Reply:
        """Switch the logging of allowed calls on or off, until the kernel ends: ``log_files=False``."""
        return self._dict(Op.SET_AUDIT_CONFIG, switches)

    def read_file(self, path: str, offset: int = 0, limit: int | None = None, encoding: Encoding = "utf-8") -> Reply:
        """The content of a file, or ``limit`` bytes of it from ``offset`` on; for binary data pass base64 as encoding.

        A relative path is relative to this process.
        """
        fields = {"path": from_here(path), "offset": offset, "limit": limit, "encoding": encoding}
        return self._dict(Op.READ, fields)

    def write_file(
        self,
        path: str,
        content: str | bytes,
        mode: Literal["write", "append"] = "write",
        encoding: Encoding = "utf-8",
    ) -> Reply:
        """Write ``content`` to a file: replace the file, or append. Bytes are sent as base64.

        A relative path is relative to this process.
        """
        text, encoding = as_text(content, encoding)
        fields = {"path": from_here(path), "content": text, "mode": mode, "encoding": encoding}
        body = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
        reply: Reply = self._json(self.call(Op.WRITE, body))
        return reply

    def exec(
        self,
        command: str | Sequence[str],
        cwd: str | None = None,
        timeout: float = 30.0,
        *,
        name: str | None = None,
        agent_id: int | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Reply:
        """Run a command, a bash command line or an argv, where this caller runs itself or in an agent's jail.

        A relative ``cwd`` is relative to this process, or with an agent to its jail.
        """
        fields = exec_fields(command, cwd, timeout, name, agent_id, env, stdin)
        return self._dict(Op.EXEC, fields, wait=timeout + WAY_IN)

    def exec_stream(
        self,
        command: str | Sequence[str],
        cwd: str | None = None,
        timeout: float = 30.0,
        *,
        name: str | None = None,
        agent_id: int | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Outputs:
        """Run a command, and iterate over its output as it is written; over a connection of its own.

        Each part has ``stream`` and ``text``. ``executed``, at the end, is the reply. Leaving the ``with`` block kills
        the command. Raises the call's error.
        """
        from .chunks import Outputs, streamed

        fields = {**exec_fields(command, cwd, timeout, name, agent_id, env, stdin), "stream": True}
        return Outputs(streamed(self.socket_path, Op.EXEC, fields, self._gave))

    def logs(self, name: str | None = None, agent_id: int | None = None, tail: int = 100) -> Reply:
        """The last lines of an agent's output."""
        return self._dict(Op.LOGS, {"name": name, "id": agent_id, "tail": tail})

    def follow_logs(self, name: str | None = None, agent_id: int | None = None, tail: int = 100) -> Iterator[Reply]:
        """The last lines, then new ones until the agent has ended; over a connection of its own.

        Each item has ``lines`` and ``missed``, how many were dropped before them. Raises the call's error.
        """
        from .chunks import streamed

        fields = {"name": name, "id": agent_id, "tail": tail, "follow": True}
        for _, page in streamed(self.socket_path, Op.LOGS, fields, self._gave):
            if page["lines"] or page["missed"]:
                yield page

    # -- Messages --------------------------------------------------------------------------------------------------

    def register_name(self, name: str) -> Reply:
        """Make us reachable by ``name``."""
        return self._dict(Op.REGISTER, {"name": name})

    def send_message(self, message: object, to: int | None = None, to_name: str | None = None) -> Reply:
        """Send a message to another mailbox, by id or by name."""
        return self._message(Op.SEND, message, {"to": to, "to_name": to_name})

    def recv_messages(self, max_messages: int = 10, timeout: float = 0.0) -> Reply:
        """Receive messages from our mailbox; waits up to ``timeout`` seconds for the first."""
        return self._dict(Op.RECV, {"max": max_messages, "timeout": timeout}, wait=timeout)

    def broadcast(self, message: object, include_self: bool = False) -> Reply:
        """Send a message to all mailboxes."""
        return self._message(Op.BROADCAST, message, {"include_self": include_self})

    # -- The model -------------------------------------------------------------------------------------------------

    def think(
        self,
        prompt: str | None = None,
        image: ImageFile | None = None,
        image_mime_type: str | None = None,
        system_instruction: str | None = None,
        thinking_level: Literal["low", "medium", "high"] | None = None,
        temperature: float | None = None,
        model: str | None = None,
        **more: Unpack[More],
    ) -> Reply:
        """Ask the model; ``content`` is its answer, ``more`` are further fields of THINK.

        ``image`` and each of ``images`` are bytes or a file's path. ``image_mime_type`` is the type of ``image``,
        needed if its first bytes don't tell. Raises ``OSError`` if a file can't be read.
        """
        from .question import question  # few agents need it

        given = {
            "image": image,
            "image_mime_type": image_mime_type,
            "system_instruction": system_instruction,
            "thinking_level": thinking_level,
            "temperature": temperature,
            "model": model,
            **more,
        }
        return self._dict(Op.THINK, question(prompt, given), wait=more.get("timeout"))

    def think_stream(self, prompt: str | None = None, **options: Unpack[Options]) -> Deltas:
        """Ask the model, and iterate over its answer while it is generated; over a connection of its own.

        The arguments are those of :meth:`think`, by name. ``thought``, at the end, is the whole reply. Leaving the
        ``with`` block cancels the question. Raises the call's error.
        """
        from .chunks import Deltas, streamed
        from .question import question

        return Deltas(streamed(self.socket_path, Op.THINK, question(prompt, options, stream=True), self._gave))

    def _dict(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Reply:
        reply: Reply = self.request(op, fields, wait)
        return reply

    def _message(self, op: int, message: object, fields: Mapping[str, object]) -> Reply:
        given = {name: value for name, value in fields.items() if value is not None}
        reply: Reply = self._json(self.call(op, json.dumps({"message": message, **given}).encode()))
        return reply


def dial(path: str, said: Sequence[bytes] = (), timeout: float | None = None) -> socket.socket:
    """Connect to the kernel at ``path``; raises :class:`ConnectionFailed` if there is none or it isn't ours.

    ``said`` are HELLOs to send first: rights given up on one connection must stay given up on the next. If one fails
    the connection is closed and the kernel's error raised.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
        check_owner(sock, path)
        sock.settimeout(timeout)
        for body in said:
            greet(sock, path, body)
        sock.settimeout(None)
    except OSError as error:
        sock.close()
        raise unreachable(path, error) from None
    except BaseException:
        sock.close()
        raise
    return sock


def greet(sock: socket.socket, path: str, body: bytes) -> None:
    """Send HELLO; raises the kernel's ``CallError`` if it fails."""
    _, op, reply = exchange(sock, Op.HELLO, body)
    if op != Op.HELLO:
        raise ConnectionFailed(f"the kernel at {path} refused: {reason(reply)}")
    try:
        checked(reply)
    except ValueError:
        raise ConnectionFailed(f"what answers at {path} is no AgentOS kernel") from None


def gives_away(body: bytes) -> bool:
    """Whether a HELLO makes its caller a guest, with reduced rights."""
    try:
        return not {"as", "level", "permissions"}.isdisjoint(json.loads(body))
    except (ValueError, TypeError):
        return False  # the kernel refuses it as well


def unreachable(path: str, error: OSError) -> ConnectionFailed:
    """The exception for a failed connection attempt."""
    if isinstance(error, ConnectionFailed):
        return error
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return ConnectionFailed(f"no kernel at {path}: start one with `agentos run`")
    return ConnectionFailed(f"no way to the kernel at {path}: {error.strerror or error}")


def check_owner(sock: Any, path: str) -> None:
    """Check the listener's uid: in a world-writable directory another user may have created the socket."""
    directory = os.stat(os.path.dirname(path) or ".")
    if not directory.st_mode & stat.S_IWOTH:
        return
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.geteuid()):
        raise ConnectionFailed(f"{path} is a socket of uid {uid}, not yours: choose another with --socket")


def exchange(sock: socket.socket, op: int, body: bytes) -> tuple[int, int, bytes]:
    """Send a frame and receive the next one."""
    try:  # noqa: SIM105 - suppress would be one module more for each agent
        sock.sendall(frame(0, op, body))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the kernel may have sent an error before it closed
    return receive(sock)


def receive(sock: socket.socket) -> tuple[int, int, bytes]:
    """The next frame: id, opcode, body. Raises ``OSError`` if the peer closes early or isn't a kernel."""
    magic, number, op, length = HEADER.unpack(exactly(sock, HEADER.size))
    if magic != MAGIC:
        raise OSError("what answers there is no AgentOS kernel")
    return number, op, exactly(sock, length)


def exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            raise OSError("closed by the kernel")
        data += part
    return bytes(data)


def checked(body: bytes) -> Reply:
    """A reply as a dict; a failed reply is raised as its exception."""
    reply: Reply = json.loads(body)
    if not reply.get("success"):
        raise from_reply(reply)
    return reply


def succeeded(body: bytes) -> bool:
    try:
        return bool(checked(body))
    except (CallError, ValueError):
        return False


def ended(reply: bytes) -> bool:
    """Whether this reply ends the connection: the kernel couldn't read what it was sent."""
    if not reply.startswith(b'{"success":false,') or len(reply) > 4096:
        return False
    return json.loads(reply).get("code") in ("bad_frame", "too_large")


def reason(body: bytes) -> str:
    try:
        return str(checked(body))
    except CallError as error:
        return str(error)


def from_here(path: str) -> str:
    """A path made absolute by this process's directory; ``~`` is left to the kernel, as the operator's home."""
    path = os.fspath(path)
    return path if path.startswith(("/", "~")) or not path else f"{os.getcwd()}/{path}"


def as_text(content: str | bytes, encoding: Encoding) -> tuple[str, Encoding]:
    """Content as text, and its encoding. Base64 is used for bytes, and for text with many escapes (parsed faster)."""
    if isinstance(content, str):
        if encoding == "base64" or sum(map(content.count, '\n"\\\t\r')) < MANY_ESCAPES:
            return content, encoding
        content = content.encode("utf-8", "surrogatepass")
    from binascii import b2a_base64

    return b2a_base64(content, newline=False).decode(), "base64"


def exec_fields(
    command: str | Sequence[str],
    cwd: str | None,
    timeout: float,
    name: str | None,
    agent_id: int | None,
    env: Mapping[str, str] | None,
    stdin: str | None,
) -> dict[str, Any]:
    """The fields of EXEC."""
    return {
        "command": command if isinstance(command, str) else list(command),
        "cwd": absolute_cwd(cwd, name, agent_id),
        "timeout": timeout,
        "name": name,
        "id": agent_id,
        "env": env,
        "stdin": stdin,
    }


def absolute_cwd(cwd: str | None, name: str | None, agent_id: int | None) -> str | None:
    """The ``cwd`` of EXEC: made absolute, unless an agent is named, since then it is a path in its jail."""
    return cwd if cwd is None or name is not None or agent_id is not None else from_here(cwd)


def absolute(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SPAWN with relative paths made absolute by this process's directory, and None left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    jailed = given.get("sandboxed", True) and given.get("isolation") != "none"
    for name in ("script", "code", "workspace"):
        if name in given and given[name] not in ("tmp", "keep"):
            given[name] = os.path.abspath(os.path.expanduser(given[name]))
    if not jailed:  # otherwise it is a directory in the jail
        given["cwd"] = os.path.abspath(os.path.expanduser(given.get("cwd", os.curdir)))
    if "/" in given.get("python", ""):
        given["python"] = os.path.abspath(os.path.expanduser(given["python"]))
    if given.get("command") and "/" in given["command"][0]:
        given["command"] = [os.path.abspath(os.path.expanduser(given["command"][0])), *given["command"][1:]]
    return given
