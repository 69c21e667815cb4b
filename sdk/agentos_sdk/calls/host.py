"""EXEC: a command that is run to its end."""

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from agentos_sdk.codec import Seconds, Text
from agentos_sdk.opcodes import Op

from .request import Request


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
class Exec(Request[Executed]):
    """Run ``command``, a line for the shell or an argv, in an agent's jail: the caller's own, or by ``name`` or ``id``.

    All that it started ends with it, after ``timeout`` seconds at the latest. ``cwd`` is a path of the jail's, and
    ``env`` is added to what the agent has.
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
