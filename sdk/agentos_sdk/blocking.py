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

TYPE_CHECKING = False  # as typing has it; that itself would be a sixth of what an idle agent takes
if TYPE_CHECKING:
    from typing import Any, Literal, Unpack

    from .chunks import Deltas
    from .question import ImageFile, More, Options

    Reply = dict[str, Any]

WAY_IN = 10.0  # seconds that a kernel may need to get a command into a jail, beyond the time of the command


def default_socket() -> str:
    """Where a kernel is when nobody says: ``AGENTOS_SOCKET``, else the user's runtime directory, else /tmp."""
    if told := os.environ.get("AGENTOS_SOCKET"):
        return told
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{runtime}/agentos.sock"
    return "/tmp/agentos.sock"


class AgentOSClient:
    """A connection to the kernel; a context manager.

    Every method answers with the reply as a dict, also where the call failed: then ``success`` is false and ``error``
    and ``code`` say why. Trouble with the connection itself raises :class:`ConnectionFailed`. ``timeout`` is how many
    seconds a reply may take beyond what the call itself waits for; None waits as long as it takes.
    """

    def __init__(self, socket_path: str | None = None, timeout: float | None = None) -> None:
        self.socket_path = socket_path or default_socket()
        self.timeout = timeout
        self.agent_id: int | None = None  # ours, from the first reply on
        self._socket: socket.socket | None = None

    def connect(self) -> bool:
        """Connect; True, or :class:`ConnectionFailed` with the way out."""
        if self._socket is None:
            self._socket = dial(self.socket_path)
        return True

    def disconnect(self) -> None:
        """Close the connection; calls after that connect again."""
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
        """Any call by number with a finished body; the reply's body. ``wait`` is how long the call itself may wait."""
        self.connect()
        assert self._socket is not None
        self._socket.settimeout(None if self.timeout is None or wait is None else self.timeout + wait)
        try:
            try:  # noqa: SIM105 - suppress would be one module more for each agent
                self._socket.sendall(frame(0, op, body))
            except (BrokenPipeError, ConnectionResetError):
                pass  # the kernel may have said why before it closed
            number, got, reply = receive(self._socket)
        except TimeoutError:
            self.disconnect()  # the reply may still come, and would be taken for the next one's
            raise ConnectionFailed(f"the kernel at {self.socket_path} gave no reply in {self.timeout:g} s") from None
        except OSError as error:
            self.disconnect()
            raise ConnectionFailed(f"the connection to the kernel at {self.socket_path} broke: {error}") from None
        if got != op:  # it is not let in, or the stream is broken: the kernel says why and closes
            self.disconnect()
            raise ConnectionFailed(f"the kernel at {self.socket_path} refused: {reason(reply)}")
        self.agent_id = number
        if ended(reply) and reply != body:
            self.disconnect()
            raise ConnectionFailed(f"the kernel at {self.socket_path} ended the connection: {reason(reply)}")
        return reply

    def request(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Any:
        """Any call by number with a JSON body; fields that are None are left out."""
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

    def hello(self, protocol: int = 1) -> Reply:
        """Who the kernel takes us for, and its version. Anything but protocol 1 is for other clients than this one."""
        return self._dict(Op.HELLO, {"protocol": protocol})

    def exit(self) -> str:
        """Say goodbye; the kernel closes the connection."""
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
        """Start an agent: ``script`` (Python) or ``command`` (argv); ``more`` is what else SPAWN takes.

        Relative paths are those of this process.
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

    def kill(self, name: str | None = None, agent_id: int | None = None, grace: float | None = None) -> Reply:
        """Stop an agent for good; ``grace`` is the seconds it gets between SIGTERM and SIGKILL."""
        return self._dict(Op.KILL, {"name": name, "id": agent_id, "grace": grace}, wait=None)

    def wait(self, name: str | None = None, agent_id: int | None = None, timeout: float | None = None) -> Reply:
        """Wait until an agent has ended for good."""
        return self._dict(Op.WAIT, {"name": name, "id": agent_id, "timeout": timeout}, wait=timeout)

    def pause(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Stop an agent's processes where they are."""
        return self._dict(Op.PAUSE, {"name": name, "id": agent_id})

    def resume(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Let a paused agent go on."""
        return self._dict(Op.RESUME, {"name": name, "id": agent_id})

    def list_agents(self) -> list[Reply]:
        """Every agent, also those that have ended lately; the call's error where it failed, as there is no dict."""
        reply: list[Reply] | Reply = self.request(Op.LIST, {})
        if isinstance(reply, dict):
            raise from_reply(reply)
        return reply

    def tree(self) -> Reply:
        """The supervision tree, nested."""
        return self._dict(Op.TREE, {})

    def inspect(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Everything about one agent: what it was started with, its walls, limits and usage."""
        return self._dict(Op.INSPECT, {"name": name, "id": agent_id})

    def metrics(self) -> Reply:
        """How the kernel as a whole is doing; for the operator."""
        return self._dict(Op.METRICS_SYSTEM, {})

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
        """Run a command, a line for the shell or an argv, in our own jail or in that of an agent; see EXEC."""
        fields = {
            "command": command if isinstance(command, str) else list(command),
            "cwd": cwd,
            "timeout": timeout,
            "name": name,
            "id": agent_id,
            "env": env,
            "stdin": stdin,
        }
        return self._dict(Op.EXEC, fields, wait=timeout + WAY_IN)

    def logs(self, name: str | None = None, agent_id: int | None = None, tail: int = 100) -> Reply:
        """The last lines that an agent wrote."""
        return self._dict(Op.LOGS, {"name": name, "id": agent_id, "tail": tail})

    def follow_logs(self, name: str | None = None, agent_id: int | None = None, tail: int = 100) -> Iterator[Reply]:
        """The last lines, then those that come, until the agent has ended; over a connection of its own.

        Each item has ``lines`` and ``missed``, how many were dropped before them. Raises the call's error.
        """
        from .chunks import streamed

        fields = {"name": name, "id": agent_id, "tail": tail, "follow": True}
        for _, page in streamed(self.socket_path, Op.LOGS, fields):
            if page["lines"] or page["missed"]:
                yield page

    # -- Messages --------------------------------------------------------------------------------------------------

    def register_name(self, name: str) -> Reply:
        """Let others reach us by ``name``."""
        return self._dict(Op.REGISTER, {"name": name})

    def send_message(self, message: object, to: int | None = None, to_name: str | None = None) -> Reply:
        """Put a message into another's mailbox, by id or by name."""
        return self._message(Op.SEND, message, {"to": to, "to_name": to_name})

    def recv_messages(self, max_messages: int = 10, timeout: float = 0.0) -> Reply:
        """Take messages from our mailbox, waiting up to ``timeout`` seconds for the first."""
        return self._dict(Op.RECV, {"max": max_messages, "timeout": timeout}, wait=timeout)

    def broadcast(self, message: object, include_self: bool = False) -> Reply:
        """Put a message into everybody's mailbox."""
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
        """Ask the model; ``content`` is what it answers, ``more`` what else THINK takes.

        ``image`` is bytes or a file's path, and so is each of ``images``; ``image_mime_type`` says what ``image`` is
        where its first bytes don't tell. A file that can't be read is an ``OSError``.
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
        """Ask the model, and iterate over its answer while it makes it; over a connection of its own.

        The arguments are those of :meth:`think`, by name. ``thought``, at the end, is the whole reply. To leave
        ``with client.think_stream(...) as deltas`` withdraws the question. Raises the call's error.
        """
        from .chunks import Deltas, streamed
        from .question import question

        return Deltas(streamed(self.socket_path, Op.THINK, question(prompt, options, stream=True)))

    def _dict(self, op: int, fields: Mapping[str, object], wait: float | None = 0.0) -> Reply:
        reply: Reply = self.request(op, fields, wait)
        return reply

    def _message(self, op: int, message: object, fields: Mapping[str, object]) -> Reply:
        given = {name: value for name, value in fields.items() if value is not None}
        reply: Reply = self._json(self.call(op, json.dumps({"message": message, **given}).encode()))
        return reply


def dial(path: str) -> socket.socket:
    """A connection to the kernel at ``path``; :class:`ConnectionFailed` where there is none or it isn't ours."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
        check_owner(sock, path)
    except OSError as error:
        sock.close()
        raise unreachable(path, error) from None
    return sock


def unreachable(path: str, error: OSError) -> ConnectionFailed:
    """What to raise when a connection could not be made."""
    if isinstance(error, ConnectionFailed):
        return error
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return ConnectionFailed(f"no kernel at {path}: start one with `agentos run`")
    return ConnectionFailed(f"no way to the kernel at {path}: {error.strerror or error}")


def check_owner(sock: Any, path: str) -> None:
    """In a directory where everybody may make files, somebody else may have made this one first."""
    directory = os.stat(os.path.dirname(path) or ".")
    if not directory.st_mode & stat.S_IWOTH:
        return
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.geteuid()):
        raise ConnectionFailed(f"{path} is a socket of uid {uid}, not yours: choose another with --socket")


def receive(sock: socket.socket) -> tuple[int, int, bytes]:
    """The next frame: id, opcode, body. ``OSError`` when the peer goes in the middle of it, or isn't a kernel."""
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
    """A reply as a dict, or the exception that it stands for."""
    reply: Reply = json.loads(body)
    if not reply.get("success"):
        raise from_reply(reply)
    return reply


def ended(reply: bytes) -> bool:
    """Whether this is the last word of a connection: the kernel couldn't read what it was sent."""
    if not reply.startswith(b'{"success":false,') or len(reply) > 4096:
        return False
    return json.loads(reply).get("code") in ("bad_frame", "too_large")


def reason(body: bytes) -> str:
    try:
        return str(checked(body))
    except CallError as error:
        return str(error)


def absolute(fields: Mapping[str, Any]) -> dict[str, Any]:
    """SPAWN's fields with this process's relative paths made absolute, and None left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    jailed = given.get("sandboxed", True) and given.get("isolation") != "none"
    for name in ("script", "code", "workspace"):
        if name in given and given[name] not in ("tmp", "keep"):
            given[name] = os.path.abspath(os.path.expanduser(given[name]))
    if not jailed:  # otherwise it is a directory of the jail
        given["cwd"] = os.path.abspath(os.path.expanduser(given.get("cwd", os.curdir)))
    if "/" in given.get("python", ""):
        given["python"] = os.path.abspath(os.path.expanduser(given["python"]))
    if given.get("command") and "/" in given["command"][0]:
        given["command"] = [os.path.abspath(os.path.expanduser(given["command"][0])), *given["command"][1:]]
    return given
