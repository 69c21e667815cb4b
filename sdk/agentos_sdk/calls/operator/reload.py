"""RELOAD: the request to read the configuration file again."""

from collections.abc import Sequence
from typing import Literal

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op


@record
class Change:
    """What happens to an agent or a group of the configuration file, and the fields that differ."""

    agent: str
    change: Literal["added", "removed", "restarted", "updated"]
    fields: Sequence[str] = ()


@record
class Reloaded(SuccessfulReply):
    """``settings`` are keys outside of agents and groups that hold from now on.

    ``kernel_restart`` are those that hold when the kernel is started anew.
    """

    changes: Sequence[Change]
    settings: Sequence[str] = ()
    kernel_restart: Sequence[str] = ()


@record
class Reload(Request[Reloaded]):
    """Read the configuration file again, and change what differs; other agents go on.

    With ``dry_run`` only say what would change. A file with mistakes changes nothing: the error has all of them.
    """

    op = Op.RELOAD
    dry_run: bool = False
