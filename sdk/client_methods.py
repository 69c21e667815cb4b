"""The methods of both clients: the table from which ``generate_clients.py`` writes them.

A new call adds an entry here, and in ``agentos_sdk/clients/trio_calls.py`` the line with its reply. Types, defaults and
docstrings come from the classes in ``agentos_sdk/calls``. Names and the order of parameters are those of the original
SDK, as far as it had the call.
"""

from typing import Any

import attrs

from agentos_sdk.calls import agents, events, host, http, inspect, kernel, messages, state, think, tools, usage
from agentos_sdk.calls.operator import (
    archives,
    audit,
    contents,
    images,
    metrics,
    overlays,
    permissions,
    recordings,
    reload,
    replay,
    snapshots,
)
from agentos_sdk.calls.request import Request

HIDDEN = {"stream", "follow", "wait", "tty", "async_", "request_id"}  # fields that are no parameters, see `shown`
RENAMED = {"id": "agent_id", "max": "max_messages"}  # fields whose parameter has another name


@attrs.frozen
class Method:
    """One method of both clients.

    ``positional`` are its parameters in their order; the request's other fields are keyword-only.
    """

    name: str
    request: type[Request[Any]]
    positional: str = attrs.field(default="", kw_only=True)
    doc: str = attrs.field(default="", kw_only=True)  # instead of the request's docstring
    note: str = attrs.field(default="", kw_only=True)  # after it
    types: dict[str, str] = attrs.field(factory=dict, kw_only=True)  # of parameters, instead of the fields' types
    renamed: dict[str, str] = attrs.field(factory=dict, kw_only=True)  # as RENAMED, of this method only
    unsent: tuple[str, ...] = attrs.field(default=(), kw_only=True)  # further fields that are no parameters
    shown: tuple[str, ...] = attrs.field(default=(), kw_only=True)  # fields in HIDDEN that are parameters all the same
    extra: dict[str, str] = attrs.field(factory=dict, kw_only=True)  # parameters that are no fields, and their types
    wait: str = attrs.field(default="", kw_only=True)  # seconds that the call itself may wait
    result: str = attrs.field(default="Reply", kw_only=True)  # its type, of the blocking client
    convert: str = attrs.field(default="", kw_only=True)  # a function that makes it of the reply
    stream: str = attrs.field(default="", kw_only=True)  # the class of a streamed reply
    streamed_by: str = attrs.field(default="stream", kw_only=True)  # the field that asks for it


RELATIVE_NOTE = "is relative to this process."
STREAM_NOTE = (
    "Use it in a ``with`` block (Trio: ``async with``): leaving that early cancels the call. Raises the call's error."
)

EXPORT = Method(
    "export_agent",
    archives.Export,
    positional="name include",
    doc="An agent as a tar archive: all of it, or what ``include`` lists of agent, state, mailbox and workspace.\n\n"
    "A program that runs is held still for it.",
    note=f"Iterate over the archive's bytes. Then ``exported`` is the reply. {STREAM_NOTE}",
    stream="Archive",
)
NOW = Method("now", host.Now, result="float", convert="lambda reply: checked(reply)['now']")
SLEEP = Method(
    "sleep",
    host.Sleep,
    positional="seconds",
    wait="None",
    result="float",
    convert="lambda reply: checked(reply)['now']",
)
RANDOM = Method(
    "random",
    host.Random,
    positional="count",
    renamed={"bytes": "count"},
    result="bytes",
    convert="lambda reply: a2b_base64(checked(reply)['data'])",
)
SPAWN = Method(
    "spawn",
    agents.Spawn,
    positional="name script sandboxed network limits restart_policy",
    note=f"A relative path {RELATIVE_NOTE}",
    wait="None",
)
KILL = Method(
    "kill",
    agents.Kill,
    positional="name agent_id grace",
    wait="None",
    result="bool",
    convert="lambda reply: bool(reply.get('killed'))",
)
START = Method("start", agents.Start, positional="name names now", wait="None")
STOP = Method("stop", agents.Stop, positional="name names keep", wait="None")
RESTART = Method("restart", agents.Restart, positional="name names", wait="None")
RELOAD = Method("reload", reload.Reload, positional="dry_run", wait="None")
LIST = Method("list_agents", agents.List, positional="all", result="list[Reply]", convert="checked_list")
LOGS = Method("logs", agents.Logs, positional="name agent_id tail", shown=("stream",))
FOLLOW_LOGS = attrs.evolve(
    LOGS,
    name="follow_logs",
    doc="The last lines of an agent's output, or with ``since`` all from then on; then new ones until it has ended.\n\n"
    "Without ``name`` and ``agent_id`` it goes on until ``until``.",
    note=f"Iterate over pages with ``lines`` and ``missed``. {STREAM_NOTE}",
    stream="Pages",
    streamed_by="follow",
)
WRITE = Method(
    "write_file",
    host.Write,
    positional="path content mode encoding",
    note=f"Bytes are sent as base64. A relative path {RELATIVE_NOTE}",
    types={"content": "str | bytes"},
)
EXEC = Method(
    "exec",
    host.Exec,
    positional="command cwd timeout",
    note=f"Without an agent a relative ``cwd`` {RELATIVE_NOTE}",
    wait="timeout + JAIL_ENTRY_SECONDS if timeout else None",
)
EXEC_STREAM = attrs.evolve(
    EXEC,
    name="exec_stream",
    doc="Like :meth:`exec`, with the output as it is written.",
    note=f"Iterate over parts with ``stream`` and ``text``; then ``executed`` is the reply. {STREAM_NOTE}",
    stream="Outputs",
)
THINK = Method(
    "think",
    think.Think,
    positional="prompt image image_mime_type system_instruction thinking_level temperature model",
    note="``image`` and each of ``images`` are bytes or a file's path. ``image_mime_type`` is the type of ``image``, "
    "needed if its first bytes don't tell. Raises ``OSError`` if a file can't be read.",
    types={
        "image": "ImageFile",
        "images": "Sequence[ImageFile]",
        "messages": "Sequence[Any]",  # the Trio client's may be values of ``calls``
        "tools": "Sequence[Any]",
    },
    extra={"image_mime_type": "str"},
    wait="timeout",
)
THINK_STREAM = attrs.evolve(
    THINK,
    name="think_stream",
    doc="Like :meth:`think`, with the answer's text as it is generated.",
    note=f"Iterate over pieces of text; then ``thought`` is the whole reply. {STREAM_NOTE}",
    stream="Thoughts",
)
FOLLOW_APPROVALS = Method(
    "follow_approvals",
    permissions.Approvals,
    doc="The calls that wait for a person's approval, again whenever that changes.",
    note=f"Iterate over lists. {STREAM_NOTE}",
    stream="ApprovalLists",
    streamed_by="follow",
)
HTTP = Method(
    "http",
    http.HTTP,
    positional="url method headers body timeout",
    note="A ``body`` of bytes is sent as base64.",
    wait="timeout",
)
HTTP_STREAM = attrs.evolve(
    HTTP,
    name="http_stream",
    doc="Like :meth:`http`, with the response's body as it arrives.",
    note="Iterate over parts: the first has ``status_code``, ``headers`` and ``url``, the others ``body`` and "
    f"``encoding``. Then ``response`` is the reply. {STREAM_NOTE}",
    stream="Parts",
)

FOLLOW_EVENTS = Method(
    "follow_events",
    events.Subscribe,
    positional="event_types agents prefix since",
    doc="Events of these types as they happen: exact ones, or with ``*`` at the end.\n\n"
    "``agents`` are ids or names: only what concerns one of these. ``prefix``: of STATE_CHANGED only keys that begin "
    "with it. With ``since`` first those with a higher ``seq`` that are kept; ``boot`` is the one that it is of.",
    note=f"Iterate over events; ``missed`` counts those that were dropped before they could be read, and "
    f"``boot_changed`` tells that ``since`` is of an earlier run of the kernel. {STREAM_NOTE}",
    stream="Events",
)

METHODS = (
    SPAWN,
    KILL,
    START,
    STOP,
    RESTART,
    Method("shutdown", kernel.Shutdown, positional="grace"),
    Method("status", kernel.Status),
    RELOAD,
    Method("wait", agents.Wait, positional="name agent_id timeout", wait="timeout"),
    Method("pause", agents.Pause, positional="name agent_id"),
    Method("resume", agents.Resume, positional="name agent_id"),
    LIST,
    Method("tree", agents.Tree),
    Method("inspect", inspect.Inspect, positional="name agent_id"),
    Method("usage", usage.Usage, positional="name since reset by_model"),
    Method("metrics", metrics.MetricsSystem, positional="history"),
    Method("agent_metrics", metrics.MetricsAgent, positional="agent_id history"),
    Method("all_agent_metrics", metrics.MetricsAllAgents),
    Method("cgroup_metrics", metrics.MetricsCgroup, positional="agent_id"),
    LOGS,
    FOLLOW_LOGS,
    Method("get_permissions", permissions.GetPerms, positional="agent_id"),
    Method(
        "set_permissions",
        permissions.SetPerms,
        positional="permissions level agent_id",
        types={"permissions": "Mapping[str, object] | str"},
    ),
    Method("explain", permissions.Explain, positional="agent call args"),
    Method("approvals", permissions.Approvals),
    FOLLOW_APPROVALS,
    Method("snapshot", snapshots.Snapshot, positional="name label", wait="None"),
    Method("snapshots", snapshots.Snapshots, positional="name", wait="None"),
    Method("images", images.Images, wait="None"),
    Method("fork", snapshots.Fork, positional="name snapshot", wait="None"),
    EXPORT,
    Method(
        "import_agent",
        archives.Import,
        positional="path as_",
        doc="Start the agent of the archive at ``path`` on the kernel's host, called ``as_`` or as before.\n\n"
        "It has the default permissions, its files in a kept workspace, and budgets of its name on this kernel.",
        note=f"A relative path {RELATIVE_NOTE}",
        wait="None",
    ),
    Method("rollback", overlays.Rollback, positional="name snapshot", wait="None"),
    Method("diff", overlays.Diff, positional="name paths", wait="None"),
    Method("apply", overlays.Apply, positional="name digest paths", wait="None"),
    Method("undo", overlays.Undo, positional="name apply", wait="None"),
    Method("decide", permissions.Decide, positional="id allow reason remember for_ forget"),
    Method("get_audit_log", audit.GetAuditLog, positional="category agent_id since_id limit"),
    Method("set_audit_config", audit.SetAuditConfig),
    Method("record_start", recordings.RecordStart, positional="agents"),
    Method("record_stop", recordings.RecordStop),
    Method("record_status", recordings.RecordStatus, positional="export"),
    Method("replay_start", replay.ReplayStart, positional="recording"),
    Method("replay_status", replay.ReplayStatus, positional="name"),
    Method("replay_stop", replay.ReplayStop, positional="name"),
    Method("get_contents", contents.GetContents, positional="name agent_id since_id limit"),
    Method(
        "read_file",
        host.Read,
        positional="path offset limit encoding",
        note=f"Binary data needs base64 as ``encoding``. A relative path {RELATIVE_NOTE}",
    ),
    WRITE,
    EXEC,
    EXEC_STREAM,
    Method("register_name", messages.Register, positional="name"),
    Method("send_message", messages.Send, positional="message to to_name"),
    Method("recv_messages", messages.Recv, positional="max_messages timeout", wait="timeout"),
    Method("ack_messages", messages.Ack, positional="ids"),
    Method("mail", messages.Mail, positional="name"),
    Method("broadcast", messages.Broadcast, positional="message include_self"),
    Method("store", state.Store, positional="key value scope ttl if_version"),
    Method("fetch", state.Fetch, positional="key scope agent"),
    Method("delete", state.Delete, positional="key scope if_version"),
    Method("keys", state.Keys, positional="prefix scope limit after agent"),
    Method("subscribe", events.Subscribe, positional="event_types"),
    FOLLOW_EVENTS,
    Method("unsubscribe", events.Unsubscribe, positional="event_types all"),
    Method(
        "poll_events", events.PollEvents, positional="max_events timeout", wait="timeout", renamed={"max": "max_events"}
    ),
    Method("emit_event", events.Emit, positional="event_type data", unsent=("event",)),
    THINK,
    THINK_STREAM,
    HTTP,
    HTTP_STREAM,
    NOW,
    SLEEP,
    RANDOM,
    Method("tools", tools.ListTools, positional="server", wait="None"),
    Method("tool_call", tools.CallTool, positional="tool arguments timeout", wait="None"),
)
