"""READ and WRITE: files. EXEC: run a command to its end. NOW, SLEEP and RANDOM: clock and random bytes."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from attrs import field

from agentos_sdk.encoding.codec import Rule, Seconds, Text
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

from .request import Request, RequestId, SuccessfulReply

Path: TypeAlias = Annotated[str, Rule(bool, "a path")]
Offset: TypeAlias = Annotated[int, Rule(lambda offset: offset >= 0, "a whole number from 0 up")]
Encoding: TypeAlias = Literal["utf-8", "base64"]

MAX_SLEEP = 86400.0  # seconds
MAX_RANDOM = 1 << 16  # bytes


@record
class Content(SuccessfulReply):
    """``content`` is the requested part, ``size`` the size of the whole file in bytes."""

    content: Text
    size: int


@record
class Read(Request[Content]):
    """Read a file, or ``limit`` bytes of it from ``offset`` on."""

    op = Op.READ
    path: Path
    offset: Offset = 0
    limit: Offset | None = None
    encoding: Encoding = "utf-8"


@record
class Written(SuccessfulReply):
    """The number of bytes written."""

    bytes_written: int


@record
class Write(Request[Written]):
    """Write ``content`` to a file: replace it atomically, or (``append``) append to it."""

    op = Op.WRITE
    path: Path
    content: Text
    mode: Literal["write", "append"] = "write"
    encoding: Encoding = "utf-8"


@record
class Executed(SuccessfulReply):
    """The end of a command.

    ``exit_code`` is 128 + the signal if one killed it; ``truncated``: not all output was kept.
    """

    stdout: Text
    stderr: Text
    exit_code: int
    timed_out: bool
    truncated: bool


@record
class Output:
    """A CHUNK of a streamed command: new output on one of its two streams."""

    stream: Literal["stdout", "stderr"]
    text: Text


Length: TypeAlias = Annotated[int, Rule(lambda length: 1 <= length <= 0xFFFF, "a whole number from 1 to 65535")]
TERM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")


@record
class Terminal:
    """The size of a terminal, and its type as in the variable TERM."""

    rows: Length = 24
    cols: Length = 80
    term: Annotated[str, Rule(TERM_NAME.fullmatch, "a terminal's type, such as xterm-256color")] = "xterm"


@record
class Input:
    """A CHUNK that the client sends to a command with a terminal.

    ``stdin`` is typed into it, in base64; ``resize`` are its rows and columns from now on; ``eof`` types Ctrl-D.
    """

    stdin: str = ""
    resize: Annotated[Sequence[Length], Rule(lambda size: len(size) == 2, "[rows, columns]")] | None = None
    eof: bool = False


@record
class Exec(Request[Executed]):
    """Run ``command``, a bash command line or an argv, for the caller or in an agent's jail.

    ``name`` or ``id`` selects the agent; without them it runs where the caller runs (on the host, or in the caller's
    jail). When the command ends all that it started is killed, after ``timeout`` seconds at the latest. ``cwd`` is a
    path in the jail, if there is one. ``env`` is added to the command's environment. With ``stream`` the output comes
    in CHUNKs and the reply has none of it. With ``tty`` it gets a terminal: its output comes in CHUNKs, too, all as
    ``stdout``, and CHUNKs with the request's id are its input (:class:`Input`). A ``timeout`` of 0 is none.
    """

    op = Op.EXEC
    command: str | Sequence[str]
    name: str | None = None
    id: int | None = None
    cwd: str | None = None
    timeout: Seconds = Seconds(30.0)
    env: Mapping[str, str] = field(factory=dict)
    stdin: Text = Text("")
    stream: bool = False
    tty: Terminal | None = None
    async_: bool = False
    request_id: RequestId = None


@record
class Time(SuccessfulReply):
    """``now`` is the kernel's time in seconds since the epoch; ``rate`` is how many of these pass in a second of it."""

    now: float
    rate: float


@record
class Now(Request[Time]):
    """The time of the kernel, in seconds since the epoch."""

    op = Op.NOW


@record
class Slept(SuccessfulReply):
    """``now`` is the time at the end of the sleep."""

    now: float


@record
class Sleep(Request[Slept]):
    """Wait for ``seconds``, or until that instant in seconds since the epoch, at most a day; returns the time then."""

    op = Op.SLEEP
    seconds: Annotated[Seconds, Rule(lambda seconds: seconds <= MAX_SLEEP, "at most 86400 seconds")] | None = None
    until: Annotated[float, Rule(lambda until: until >= 0, "seconds since the epoch")] | None = None


@record
class RandomData(SuccessfulReply):
    """``data`` is base64."""

    data: str


@record
class Random(Request[RandomData]):
    """Get ``bytes`` random bytes, fit for keys."""

    op = Op.RANDOM
    bytes: Annotated[int, Rule(lambda count: 1 <= count <= MAX_RANDOM, "a whole number from 1 to 65536")]
