"""The methods of the Trio client: the parameters and docstrings of ``client_calls.py``, awaited, with typed results.

``kill = call(Calls.kill, Kill)`` is a coroutine function with the parameters of ``Calls.kill``, which makes the fields
of the request from them. It sends these and returns the reply of ``Kill``. mypy and editors see that by the types of
:func:`call`, ``help`` and ``inspect`` by the signature that :func:`describe` sets.
"""

from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_type_hints

from agentos_sdk.calls import agents, events, host, http, inspect, kernel, messages, state, think, usage
from agentos_sdk.calls.operator import archives, audit, contents, overlays, permissions, recordings, reload, replay
from agentos_sdk.calls.operator.images import Images, ImagesReply
from agentos_sdk.calls.operator.metrics import (
    AgentMetricsReply,
    AllAgentsMetrics,
    CgroupMetricsReply,
    MetricsAgent,
    MetricsAllAgents,
    MetricsCgroup,
    MetricsReply,
    MetricsSystem,
)
from agentos_sdk.calls.operator.snapshots import Fork, Forked, Snapshot, Snapshots, SnapshotsReply
from agentos_sdk.calls.request import Request
from agentos_sdk.calls.tools import CallTool, ListTools

from .client_calls import Calls
from .streams import ApprovalLists, Archive, Events, Outputs, Pages, Parts, Thoughts, question_in_thread

P = ParamSpec("P")
Reply = TypeVar("Reply")
Value = TypeVar("Value")
Fields: TypeAlias = Mapping[str, Any]
Text: TypeAlias = Callable[Concatenate[Any, P], Any]
Method: TypeAlias = Callable[Concatenate[Any, P], Coroutine[Any, Any, Value]]

FIELDS = Calls()  # its methods return the fields of their requests


def call(
    text: Text[P], request: type[Request[Reply]], prepare: Callable[[Fields], Awaitable[Fields]] | None = None
) -> Method[P, Reply]:
    """The method that makes this request and returns its reply; ``prepare`` is applied to the fields first."""

    async def method(kernel: Any, /, *args: P.args, **kwargs: P.kwargs) -> Reply:
        fields = text(FIELDS, *args, **kwargs)
        reply: Reply = await kernel.make_call(request, await prepare(fields) if prepare else fields)
        return reply

    return describe(method, text, request.reply)


def part(text: Text[P], request: type[Request[Any]], field: Value) -> Method[P, Value]:
    """Like :func:`call`, for one field of the reply: to mypy a value of it, at run time the slot that reads it."""
    slot: Any = field

    async def method(kernel: Any, /, *args: P.args, **kwargs: P.kwargs) -> Value:
        reply = await kernel.make_call(request, text(FIELDS, *args, **kwargs))
        value: Value = slot.__get__(reply)
        return value

    return describe(method, text, get_type_hints(request.reply)[slot.__name__])


def converted(
    text: Text[P], request: type[Request[Reply]], result: type[Value], convert: Callable[[Reply], Value]
) -> Method[P, Value]:
    """Like :func:`call`, for a value that is made of the reply."""

    async def method(kernel: Any, /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return convert(await kernel.make_call(request, text(FIELDS, *args, **kwargs)))

    return describe(method, text, result)


def stream(text: Text[P], kind: Callable[[Any, Fields], Value]) -> Callable[Concatenate[Any, P], Value]:
    """The method that opens a stream of this kind."""

    def method(kernel: Any, /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return kind(kernel, text(FIELDS, *args, **kwargs))

    return describe(method, text, kind)


def describe(method: Value, text: Callable[..., Any], result: object) -> Value:
    """``method`` with the name, docstring and parameters of ``text``, for ``help`` and ``inspect``."""
    described: Any = method
    update_wrapper(described, text)
    described.__annotations__ = {**text.__annotations__, "return": result}
    described.__signature__ = signature(text).replace(return_annotation=result)
    return method


class TrioCalls:
    """The calls as methods. A parameter that is None is left out of the request, so that the kernel's default holds."""

    spawn = call(Calls.spawn, agents.Spawn)
    kill = call(Calls.kill, agents.Kill)
    start = call(Calls.start, agents.Start)
    stop = call(Calls.stop, agents.Stop)
    restart = call(Calls.restart, agents.Restart)
    shutdown = call(Calls.shutdown, kernel.Shutdown)
    status = call(Calls.status, kernel.Status)
    reload = call(Calls.reload, reload.Reload)
    wait = call(Calls.wait, agents.Wait)
    pause = call(Calls.pause, agents.Pause)
    resume = call(Calls.resume, agents.Resume)
    list_agents = call(Calls.list_agents, agents.List)
    tree = part(Calls.tree, agents.Tree, agents.TreeReply.tree)
    inspect = call(Calls.inspect, inspect.Inspect)
    usage = part(Calls.usage, usage.Usage, usage.UsageReply.usage)
    metrics = part(Calls.metrics, MetricsSystem, MetricsReply.metrics)
    agent_metrics = part(Calls.agent_metrics, MetricsAgent, AgentMetricsReply.metrics)
    all_agent_metrics = part(Calls.all_agent_metrics, MetricsAllAgents, AllAgentsMetrics.agents)
    cgroup_metrics = part(Calls.cgroup_metrics, MetricsCgroup, CgroupMetricsReply.metrics)
    logs = call(Calls.logs, agents.Logs)
    follow_logs = stream(Calls.follow_logs, Pages)
    get_permissions = part(Calls.get_permissions, permissions.GetPerms, permissions.PermsReply.permissions)
    set_permissions = call(Calls.set_permissions, permissions.SetPerms)
    explain = call(Calls.explain, permissions.Explain)
    approvals = part(Calls.approvals, permissions.Approvals, permissions.ApprovalsReply.pending)
    follow_approvals = stream(Calls.follow_approvals, ApprovalLists)
    snapshot = call(Calls.snapshot, Snapshot)
    snapshots = part(Calls.snapshots, Snapshots, SnapshotsReply.snapshots)
    images = part(Calls.images, Images, ImagesReply.images)
    fork = part(Calls.fork, Fork, Forked.agents)
    export_agent = stream(Calls.export_agent, Archive)
    import_agent = call(Calls.import_agent, archives.Import)
    rollback = call(Calls.rollback, overlays.Rollback)
    diff = call(Calls.diff, overlays.Diff)
    apply = call(Calls.apply, overlays.Apply)
    undo = call(Calls.undo, overlays.Undo)
    decide = call(Calls.decide, permissions.Decide)
    get_audit_log = part(Calls.get_audit_log, audit.GetAuditLog, audit.AuditLog.entries)
    set_audit_config = part(Calls.set_audit_config, audit.SetAuditConfig, audit.AuditConfig.config)
    record_start = call(Calls.record_start, recordings.RecordStart)
    record_stop = call(Calls.record_stop, recordings.RecordStop)
    record_status = call(Calls.record_status, recordings.RecordStatus)
    replay_start = call(Calls.replay_start, replay.ReplayStart)
    replay_status = call(Calls.replay_status, replay.ReplayStatus)
    replay_stop = call(Calls.replay_stop, replay.ReplayStop)
    get_contents = call(Calls.get_contents, contents.GetContents)
    read_file = call(Calls.read_file, host.Read)
    write_file = call(Calls.write_file, host.Write)
    exec = call(Calls.exec, host.Exec)
    exec_stream = stream(Calls.exec_stream, Outputs)
    register_name = call(Calls.register_name, messages.Register)
    send_message = call(Calls.send_message, messages.Send)
    recv_messages = part(Calls.recv_messages, messages.Recv, messages.Received.messages)
    ack_messages = part(Calls.ack_messages, messages.Ack, messages.Acknowledged.acked)
    mail = call(Calls.mail, messages.Mail)
    broadcast = call(Calls.broadcast, messages.Broadcast)
    store = call(Calls.store, state.Store)
    fetch = call(Calls.fetch, state.Fetch)
    delete = call(Calls.delete, state.Delete)
    keys = call(Calls.keys, state.Keys)
    subscribe = call(Calls.subscribe, events.Subscribe)
    follow_events = stream(Calls.follow_events, Events)
    unsubscribe = call(Calls.unsubscribe, events.Unsubscribe)
    poll_events = call(Calls.poll_events, events.PollEvents)
    emit_event = call(Calls.emit_event, events.Emit)
    think = call(Calls.think, think.Think, question_in_thread)
    think_stream = stream(Calls.think_stream, Thoughts)
    http = call(Calls.http, http.HTTP)
    http_stream = stream(Calls.http_stream, Parts)
    now = part(Calls.now, host.Now, host.Time.now)
    sleep = part(Calls.sleep, host.Sleep, host.Slept.now)
    random = converted(Calls.random, host.Random, bytes, lambda reply: a2b_base64(reply.data))
    tools = call(Calls.tools, ListTools)
    tool_call = call(Calls.tool_call, CallTool)
