"""RECORD_START, RECORD_STOP and RECORD_STATUS: what agents ask the kernel and are answered, for the operator."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.codec import Rule, Size
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op

MAX_NAMED = 1000
MIN_BYTES = 4096
Positive = Annotated[int, Rule(lambda number: number >= 1, "a whole number from 1 up")]
Index = Annotated[int, Rule(lambda number: number >= 0, "a whole number from 0 up")]
Bytes = Annotated[Size, Rule(lambda size: size >= MIN_BYTES, f"a size of at least {MIN_BYTES}")]
Names = Annotated[Sequence[str], Rule(lambda names: len(names) <= MAX_NAMED, f"at most {MAX_NAMED} names")]
Ids = Annotated[Sequence[int], Rule(lambda ids: len(ids) <= MAX_NAMED, f"at most {MAX_NAMED} ids")]
State = Literal["IDLE", "RECORDING"]


@record
class RecordingBegun(SuccessfulReply):
    """The recording is called ``name``, its directory is ``path`` on the kernel's host."""

    state: State = "RECORDING"
    name: str
    path: str


@record
class RecordStart(Request[RecordingBegun]):
    """Record calls from now on: those of the ``agents`` with these names, or callers with the ids ``filter_agents``.

    Without both it is every caller, the operator included. ``include_think=False`` leaves THINK out of what
    RECORD_STATUS exports, and so on. The recording ends by itself at ``max_bytes``, or after ``max_entries`` calls.
    With ``tree`` also what the ``agents`` spawn, and what that spawns.
    """

    op = Op.RECORD_START
    agents: Names | None = None
    filter_agents: Ids | None = None
    include_think: bool = True
    include_http: bool = True
    include_exec: bool = True
    max_bytes: Bytes | None = None
    max_entries: Positive | None = None
    tree: bool = False


@record
class RecordingEnded(SuccessfulReply):
    """How many calls it has, and where it is."""

    state: State = "IDLE"
    entry_count: int
    name: str
    path: str


@record
class RecordStop(Request[RecordingEnded]):
    """End the recording; what agents with ``record = true`` do is recorded on."""

    op = Op.RECORD_STOP


@record
class RecordingStatus(SuccessfulReply):
    """``entry_count`` counts the calls of the present recording, or of the last one.

    ``recording`` is a JSON array as text, ``entries`` are the same as values. ``reason``: why it ended by itself.
    """

    state: State
    entry_count: int
    name: str | None = None
    path: str | None = None
    reason: str | None = None
    recording: str | None = None
    entries: Sequence[Mapping[str, Any]] | None = None


@record
class RecordStatus(Request[RecordingStatus]):
    """The state of the recording; with ``export`` its calls as text, with ``get_entries`` as values.

    Of these the first ``limit`` whose ``id`` is above ``since_id``.
    """

    op = Op.RECORD_STATUS
    export: bool = False
    get_entries: bool = False
    limit: Positive | None = None
    since_id: Index = 0
