"""READ and WRITE: files. EXEC: a command that is run to its end."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from attrs import field, frozen

from agentos_sdk.codec import Rule, Seconds, Text
from agentos_sdk.opcodes import Op

from .request import Request, RequestId, Synchronous

Path: TypeAlias = Annotated[str, Rule(bool, "a path")]
Offset: TypeAlias = Annotated[int, Rule(lambda offset: offset >= 0, "a whole number from 0 up")]
Encoding: TypeAlias = Literal["utf-8", "base64"]


@frozen(kw_only=True)
class Content:
    """``content`` is what was asked for, ``size`` how many bytes the whole file has."""

    success: bool = True
    content: Text
    size: int


@frozen(kw_only=True)
class Read(Request[Content]):
    """Read a file, or ``limit`` bytes of it from ``offset`` on."""

    op = Op.READ
    reply = Content
    path: Path
    offset: Offset = 0
    limit: Offset | None = None
    encoding: Encoding = "utf-8"


@frozen(kw_only=True)
class Written:
    """How many bytes were written."""

    success: bool = True
    bytes_written: int


@frozen(kw_only=True)
class Write(Request[Written]):
    """Put ``content`` into a file: in the place of what is there, in one step, or (``append``) behind it."""

    op = Op.WRITE
    reply = Written
    path: Path
    content: Text
    mode: Literal["write", "append"] = "write"
    encoding: Encoding = "utf-8"


@frozen(kw_only=True)
class Executed:
    """``exit_code`` is 128 + the signal where one ended it; ``truncated``: it wrote more than is kept."""

    success: bool = True
    stdout: Text
    stderr: Text
    exit_code: int
    timed_out: bool
    truncated: bool


@frozen(kw_only=True)
class Output:
    """What a CHUNK of a streamed command holds: what it has just written to one of its two streams."""

    stream: Literal["stdout", "stderr"]
    text: Text


@frozen(kw_only=True)
class Exec(Request[Executed]):
    """Run ``command``, a line for bash or an argv, where its caller is, or beside an agent by ``name`` or ``id``.

    All that it started ends with it, after ``timeout`` seconds at the latest. ``cwd`` is a path of the jail's, where
    there is one, and ``env`` is added to what the command has. With ``stream`` what it writes comes in CHUNKs, and the
    reply has none of it.
    """

    op = Op.EXEC
    reply = Executed
    command: str | Sequence[str]
    name: str | None = None
    id: int | None = None
    cwd: str | None = None
    timeout: Seconds = Seconds(30.0)
    env: Mapping[str, str] = field(factory=dict)
    stdin: Text = Text("")
    stream: bool = False
    async_: Synchronous = False
    request_id: RequestId = None
