"""The methods of both clients, one per call, and what makes the fields of their requests."""

# The client decides what `_make_call` returns.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from binascii import a2b_base64

from agentos_sdk.errors import checked, checked_list

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from agentos_sdk.encoding.chunks import ApprovalLists, Archive, Events, Outputs, Pages, Parts, Thoughts

    from .question import ImageFile

    Reply = dict[str, Any]

JAIL_ENTRY_SECONDS = 10.0  # seconds allowed for entering a jail, beyond the command's own timeout


class Calls:
    """The calls as methods. A parameter that is None is left out of the request, so that the kernel's default holds.

    By itself this class makes no call: its methods return the fields of their requests. The blocking client inherits
    them and sends those; the results' types are its own. The Trio client's methods, in ``trio_calls.py``, call them.
    A method hands on its ``locals()``: its parameters are the fields, but for those ``named`` otherwise, with their
    types and defaults. Opcodes are numbers, as in opcodes.py: that needs enum, which an agent that only makes calls
    doesn't import. Names and the order of parameters are those of the original SDK, as far as it had the call.
    """

    def _make_call(
        self,
        op: int,
        given: dict[str, Any],
        named: Mapping[str, str] = {},  # fields by the parameters that have other names
        wait: float | None = 0.0,  # seconds
        null: str = "",  # a field that is sent even if it is None
        convert: Callable[[Any], object] | None = None,  # makes the blocking client's result of the reply
    ) -> Any:
        return self._fields(op, given, named, null)

    def _open_stream(self, op: int, given: dict[str, Any], named: Mapping[str, str] = {}) -> Any:
        return self._fields(op, given, named)

    def _fields(self, op: int, given: dict[str, Any], named: Mapping[str, str], null: str = "") -> dict[str, Any]:
        del given["self"]
        fields = {name: value for name, value in given.items() if value is not None or name == null}
        for parameter, field in named.items():
            if parameter in fields:
                fields[field] = fields.pop(parameter)
        return self._prepare(op, fields) if op in {0x01, 0x02, 0x03, 0x04, 0x10, 0x35, 0x50} else fields

    def _prepare(self, op: int, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of THINK, READ, WRITE, EXEC, SPAWN, IMPORT and HTTP: paths made absolute, bytes as text."""
        from .arguments import PREPARE

        if op in PREPARE:  # not THINK, whose images a client reads in its own way
            PREPARE[op](fields)
        return fields

    def spawn(
        self,
        name: str,
        script: str | None = None,
        sandboxed: bool = True,
        network: bool | Literal["none", "filtered", "host"] = False,
        limits: Mapping[str, Any] | None = None,
        restart_policy: Literal["always", "on-failure", "never"] | None = None,
        *,
        command: Sequence[str] | None = None,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        restart: Literal["permanent", "transient", "temporary"] | None = None,
        max_restarts: int | None = None,
        restart_window: float | None = None,
        backoff: Mapping[str, Any] | None = None,
        shutdown: float | Literal["brutal_kill", "infinity"] | None = None,
        ready: Literal["hello"] | None = None,
        python: str | None = None,
        cwd: str | None = None,
        isolation: Literal["strict", "standard", "best_effort", "none"] | None = None,
        code: str | None = None,
        workspace: str | None = None,
        workspace_mode: Literal["direct", "overlay"] | None = None,
        runtime: Literal["exec", "fast"] | None = None,
        terminals: bool | None = None,
        mailbox: Literal["kept", "memory"] | None = None,
        image: str | None = None,
        user: Literal["root"] | None = None,
        llm: Mapping[str, Any] | None = None,
        permissions: object = None,
    ) -> Reply:
        """Start an agent: exactly one of ``script`` and ``command``, or neither in an ``image`` that has a command.

        ``restart_policy`` is the original's name for ``restart``: always, on-failure, never. With the
        ``workspace_mode`` overlay its changes of a directory that is its ``workspace`` wait for APPLY. With
        ``terminals`` its programs may open pseudo-terminals. A ``kept`` mailbox outlives it and the kernel, for the
        next of its name and spawner.

        A relative path is relative to this process.
        """
        return self._make_call(0x10, locals(), wait=None)

    def kill(self, name: str | None = None, agent_id: int | None = None, grace: float | None = None) -> bool:
        """Stop an agent for good, whatever its restart type: SIGTERM, ``grace`` seconds, SIGKILL.

        Without ``grace`` the agent's own ``shutdown`` applies. Exactly one of ``name`` and ``agent_id``.
        """
        return self._make_call(
            0x11, locals(), {"agent_id": "id"}, wait=None, convert=lambda reply: bool(reply.get("killed"))
        )

    def start(self, name: str | None = None, names: Sequence[str] | None = None, now: bool = False) -> Reply:
        """Start declared agents and groups that have ended, in order: exactly one of ``name`` and ``names``.

        Id, name and mailbox stay, and restart limits begin anew. Agents that run, or wait for their restart, are
        left alone. Those with a schedule wait for its next time, unless they are wanted ``now``. Answers when each
        start has succeeded or failed.
        """
        return self._make_call(0x1A, locals(), wait=None)

    def stop(self, name: str | None = None, names: Sequence[str] | None = None, keep: bool = False) -> Reply:
        """Stop declared agents and groups until START: exactly one of ``name`` and ``names``.

        They stay stopped when their group is restarted, and with ``keep`` when the next kernel starts.
        """
        return self._make_call(0x1B, locals(), wait=None)

    def restart(self, name: str | None = None, names: Sequence[str] | None = None) -> Reply:
        """Stop agents and groups and start them again: exactly one of ``name`` and ``names``.

        A member of a group is restarted without its siblings.
        """
        return self._make_call(0x1C, locals(), wait=None)

    def shutdown(self, grace: float | None = None) -> Reply:
        """Stop the kernel: all agents in order, then the kernel itself, which closes all connections.

        Answers when that has begun. No agent gets more than ``grace`` seconds between SIGTERM and SIGKILL.
        """
        return self._make_call(0x1D, locals())

    def status(self) -> Reply:
        """Get the state of the kernel as a whole, and what needs attention."""
        return self._make_call(0x1E, locals())

    def reload(self, dry_run: bool = False) -> Reply:
        """Read the configuration file again, and change what differs; other agents go on.

        With ``dry_run`` only say what would change. A file with mistakes changes nothing: the error has all of
        them.
        """
        return self._make_call(0x19, locals(), wait=None)

    def wait(self, name: str | None = None, agent_id: int | None = None, timeout: float | None = None) -> Reply:
        """Wait until an agent has ended for good (a restart doesn't count); at most ``timeout`` seconds."""
        return self._make_call(0x13, locals(), {"agent_id": "id"}, wait=timeout)

    def pause(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Stop an agent's process group (SIGSTOP) until RESUME. Exactly one of ``name`` and ``agent_id``."""
        return self._make_call(0x14, locals(), {"agent_id": "id"})

    def resume(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Continue a paused agent. Exactly one of ``name`` and ``agent_id``."""
        return self._make_call(0x15, locals(), {"agent_id": "id"})

    def list_agents(self, all: bool = False) -> list[Reply]:
        """List the agents that are alive or will be restarted; with ``all`` also those that have ended for good.

        Of the spawned agents that have ended the kernel remembers the last 1,000.
        """
        return self._make_call(0x12, locals(), convert=checked_list)

    def tree(self) -> Reply:
        """The current supervision tree."""
        return self._make_call(0x16, locals())

    def inspect(self, name: str | None = None, agent_id: int | None = None) -> Reply:
        """Inspect one agent: exactly one of ``name`` and ``agent_id``."""
        return self._make_call(0x18, locals(), {"agent_id": "id"})

    def usage(
        self,
        name: str | None = None,
        since: float | None = None,
        reset: bool = False,
        by_model: bool = False,
        *,
        hour: bool | None = None,
        total: bool | None = None,
    ) -> Reply:
        """What agents have used by day: one, or all without ``name``.

        ``since`` is seconds since the epoch: that day and later ones; without it the last seven days. ``reset``,
        for the operator only: set the used part of the budgets of ``name`` to 0 in their present windows.
        ``by_model``: a row for each model, of what it was used. ``total``: a row for all days together, the largest
        cost first. ``hour``: of the last hour, by model, in place of days.
        """
        return self._make_call(0x1F, locals())

    def metrics(self, history: float | None = None) -> Reply:
        """Get the metrics of the whole kernel; ``history`` also gets the samples of so many seconds, at most 900."""
        return self._make_call(0xC0, locals())

    def agent_metrics(self, agent_id: int | None = None, history: float | None = None) -> Reply:
        """Get the metrics of one agent, by default of the caller itself.

        ``history`` also gets the samples of so many seconds, at most 900: every second while its metrics are asked
        for at least every ten seconds, else every five.
        """
        return self._make_call(0xC1, locals())

    def all_agent_metrics(self) -> Reply:
        """Get the metrics of all agents that haven't ended for good, and whose metrics the caller may see.

        PSS is not measured for them: it takes half a millisecond for each process.
        """
        return self._make_call(0xC2, locals())

    def cgroup_metrics(self, agent_id: int | None = None) -> Reply:
        """Get all that the control group of one agent counts, by default of the caller itself."""
        return self._make_call(0xC3, locals())

    def logs(
        self,
        name: str | None = None,
        agent_id: int | None = None,
        tail: int | None = None,
        *,
        names: Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        grep: str | None = None,
        stream: str | None = None,
        run: int | None = None,
    ) -> Reply:
        """The last lines of an agent's output.

        ``names`` are several agents, and none at all means all. ``since`` and ``until`` are seconds since the
        epoch, ``grep`` is a regular expression, ``stream`` is stdout, stderr or kernel, and ``run`` is 0 for this
        run of the kernel, 1 for the one before. ``tail`` is 100 by default.
        """
        return self._make_call(0x17, locals(), {"agent_id": "id"})

    def follow_logs(
        self,
        name: str | None = None,
        agent_id: int | None = None,
        tail: int | None = None,
        *,
        names: Sequence[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        grep: str | None = None,
        stream: str | None = None,
        run: int | None = None,
    ) -> Pages:
        """The last lines of an agent's output, or with ``since`` all from then on; then new ones until it has ended.

        Without ``name`` and ``agent_id`` it goes on until ``until``.

        Iterate over pages with ``lines`` and ``missed``. Use it in a ``with`` block (Trio: ``async with``): leaving
        that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x17, {**locals(), "follow": True}, {"agent_id": "id"})

    def get_permissions(self, agent_id: int | None = None) -> Reply:
        """Get the permissions of an agent, or of the caller."""
        return self._make_call(0x40, locals())

    def set_permissions(
        self,
        permissions: Mapping[str, object] | str | None = None,
        level: str | None = None,
        agent_id: int | None = None,
    ) -> Reply:
        """Replace an agent's permissions.

        Exactly one of ``level``, the name of a level or a set, and ``permissions``.
        """
        return self._make_call(0x41, locals())

    def explain(self, agent: str | int, call: str, args: Mapping[str, Any] | None = None) -> Reply:
        """What would be decided if ``agent`` (a name or an id) made ``call`` with ``args``; nothing is executed.

        The operator may also ask about a guest, and a guest about itself.
        """
        return self._make_call(0x44, locals())

    def approvals(self) -> Reply:
        """Only for the operator."""
        return self._make_call(0x42, locals())

    def follow_approvals(self) -> ApprovalLists:
        """The calls that wait for a person's approval, again whenever that changes.

        Iterate over lists. Use it in a ``with`` block (Trio: ``async with``): leaving that early cancels the call.
        Raises the call's error.
        """
        return self._open_stream(0x42, {**locals(), "follow": True})

    def snapshot(self, name: str, label: str | None = None) -> Reply:
        """Keep what the agent ``name`` has changed in its overlay, its private keys, and its unread mail.

        ``NAME@LABEL`` is the moment's address, without a ``label`` it has its id. A program that runs is held still
        for it, and goes on. An agent may take 16 of itself, and of each agent below it.
        """
        return self._make_call(0x36, locals(), wait=None)

    def snapshots(self, name: str | None = None, *, remove: str | None = None) -> Reply:
        """The snapshots of the agent ``name``, or all; with ``remove`` that one is removed first, by its id or label.

        A label needs the ``name``. The operator alone.
        """
        return self._make_call(0x3B, locals(), wait=None)

    def images(self, *, remove: str | None = None) -> Reply:
        """The images of the kernel's state directory; with ``remove`` that one is removed first.

        One that an agent runs in, or would, can't be removed. The operator alone.
        """
        return self._make_call(0x3C, locals(), wait=None)

    def fork(
        self, name: str, snapshot: str | None = None, *, count: int | None = None, names: Sequence[str] | None = None
    ) -> Reply:
        """Start ``count`` agents like ``name`` that go on from a ``snapshot``, given by label or id, or from now.

        Each works in an overlay of its own, begins with the private keys of that moment, and has budgets of its
        own. They are called ``NAME-1``, ``NAME-2`` and so on where ``names`` has no names for all; all come up or
        none. An agent may do that with agents below it: the forks are children of the same parent.
        """
        return self._make_call(0x38, locals(), wait=None)

    def export_agent(
        self, name: str, include: Sequence[Literal["agent", "state", "mailbox", "workspace"]] | None = None
    ) -> Archive:
        """An agent as a tar archive: all of it, or what ``include`` lists of agent, state, mailbox and workspace.

        A program that runs is held still for it.

        Iterate over the archive's bytes. Then ``exported`` is the reply. Use it in a ``with`` block (Trio: ``async
        with``): leaving that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x34, {**locals(), "stream": True})

    def import_agent(self, path: str | None = None, as_: str | None = None) -> Reply:
        """Start the agent of the archive at ``path`` on the kernel's host, called ``as_`` or as before.

        It has the default permissions, its files in a kept workspace, and budgets of its name on this kernel.

        A relative path is relative to this process.
        """
        return self._make_call(0x35, locals(), {"as_": "as"}, wait=None)

    def rollback(self, name: str, snapshot: str) -> Reply:
        """Throw away what the agent ``name`` has changed since a snapshot, given by label or id, or since ``start``.

        To a snapshot it also gets its private keys and unread mail back.
        """
        return self._make_call(0x37, locals(), wait=None)

    def diff(self, name: str, paths: Sequence[str] | None = None, *, content: bool | None = None) -> Reply:
        """What the agent ``name`` has changed in its overlay: at and below ``paths``, or everywhere.

        With ``content`` text files have their differences.
        """
        return self._make_call(0x39, locals(), wait=None)

    def apply(
        self,
        name: str,
        digest: str,
        paths: Sequence[str] | None = None,
        *,
        also: Sequence[str] | None = None,
        resolve: Mapping[str, Literal["ours", "theirs"]] | None = None,
    ) -> Reply:
        """Make the changes of an agent's overlay in the host's directory; the operator alone.

        ``digest`` is that of the DIFF of the same ``paths`` that was shown. Names that programs of the host obey
        are applied if ``also`` has them. ``resolve`` decides conflicts by path: ``ours`` is the agent's version,
        ``theirs`` the host's.
        """
        return self._make_call(0x3A, locals(), wait=None)

    def undo(self, name: str, apply: str | None = None) -> Reply:
        """Take back an APPLY of this agent's changes, by default the last one; the operator alone."""
        return self._make_call(0x3D, locals(), wait=None)

    def decide(
        self,
        id: int,
        allow: bool,
        reason: str | None = None,
        remember: Literal["once", "agent", "always"] = "once",
        for_: float | None = None,
        forget: bool = False,
        *,
        digest: str | None = None,
        via: str | None = None,
        any_path: bool | None = None,
    ) -> Reply:
        """Allow or refuse a call that waits for approval; only for the operator.

        ``remember`` the answer for the next calls that do the same to the same object, by the agent with this id
        (``agent``) or by any of that name (``always``), for ``for_`` seconds or without end. For an HTTP request
        the object is its method, origin and path, with ``any_path`` all paths of that origin. ``reason``: for the
        agent, where it is refused. ``forget``: ``id`` is that of a remembered answer, which is revoked.

        With ``digest`` it is decided only if the approval's is the same. ``via``: the program by which a person has
        answered, which the audit log and the event name.
        """
        return self._make_call(0x43, locals(), {"for_": "for"})

    def get_audit_log(
        self,
        category: Literal[
            "agents",
            "audit",
            "commands",
            "files",
            "kernel",
            "messages",
            "model",
            "network",
            "permissions",
            "state",
            "tools",
        ]
        | None = None,
        agent_id: int | None = None,
        since_id: int | None = None,
        limit: int = 100,
    ) -> Reply:
        """Get the newest ``limit`` entries; with ``since_id`` the first entries after that one."""
        return self._make_call(0x76, locals())

    def set_audit_config(
        self,
        *,
        log_agents: bool | None = None,
        log_audit: bool | None = None,
        log_commands: bool | None = None,
        log_files: bool | None = None,
        log_messages: bool | None = None,
        log_model: bool | None = None,
        log_network: bool | None = None,
        log_permissions: bool | None = None,
        log_state: bool | None = None,
        log_tools: bool | None = None,
    ) -> Reply:
        """Switch the logging of allowed calls on or off, until the kernel ends; None leaves a switch unchanged."""
        return self._make_call(0x77, locals())

    def record_start(
        self,
        agents: Sequence[str] | None = None,
        *,
        filter_agents: Sequence[int] | None = None,
        include_think: bool | None = None,
        include_http: bool | None = None,
        include_exec: bool | None = None,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        tree: bool | None = None,
    ) -> Reply:
        """Record calls from now on: those of the ``agents`` with these names, or callers with the ids
        ``filter_agents``.

        Without both it is every caller, the operator included. ``include_think=False`` leaves THINK out of what
        RECORD_STATUS exports, and so on. The recording ends by itself at ``max_bytes``, or after ``max_entries``
        calls. With ``tree`` also what the ``agents`` spawn, and what that spawns.
        """
        return self._make_call(0x70, locals())

    def record_stop(self) -> Reply:
        """End the recording; what agents with ``record = true`` do is recorded on."""
        return self._make_call(0x71, locals())

    def record_status(
        self,
        export: bool = False,
        *,
        get_entries: bool | None = None,
        limit: int | None = None,
        since_id: int | None = None,
    ) -> Reply:
        """The state of the recording; with ``export`` its calls as text, with ``get_entries`` as values.

        Of these the first ``limit`` whose ``agent_id`` is above ``since_id``.
        """
        return self._make_call(0x72, locals())

    def replay_start(
        self,
        recording: str | None = None,
        *,
        recording_data: str | None = None,
        path: str | None = None,
        agent: str | None = None,
        code: str | None = None,
        until: int | None = None,
        then: Literal["stop", "live"] | None = None,
        edits: dict[str, dict[str, Any]] | None = None,
        model: str | None = None,
        hold: bool | None = None,
    ) -> Reply:
        """Have an agent live a recorded life again, in a jail without a network, with its calls answered from there.

        ``path`` is the recording's name or directory, ``agent`` the agent or its life ``NAME/2``; without it all
        lives are replayed, each alone. ``code`` is another directory with the program. Or replay the text of
        RECORD_STATUS, which is ``recording`` as well as ``recording_data``: STORE, FETCH, DELETE and KEYS are done
        in a scope of the replay's own and compared, other calls are skipped. The operator alone; one replay at a
        time, and ten that go on live.

        With ``path``: calls with a number below ``until`` are answered from the recording. ``then`` says what
        follows: ``stop`` ends the replay, and with ``live`` calls are done, with today's rights. ``edits`` are
        other answers of THINK by the call's number, such as ``{"12": {"content": "no"}}``. Live questions are asked
        of ``model``, if it is given. With ``live``, several lives and no ``agent`` all go on together, once each
        has come to the number ``until`` of the recording's order. What goes on live is recorded; with ``hold`` its
        files stay in an overlay, and its jail is there for commands after its end, until it is killed.
        """
        return self._make_call(0x73, locals())

    def replay_status(self, name: str | None = None, *, calls: bool | None = None) -> Reply:
        """How far a replay is, by its agent's ``name`` or the last one, and what it has found. The operator alone.

        With ``calls``, also what was found of each recorded call.
        """
        return self._make_call(0x74, locals())

    def replay_stop(self, name: str | None = None) -> Reply:
        """End the replay of the agent ``name``, or all, and forget them. The operator alone."""
        return self._make_call(0x75, locals())

    def get_contents(
        self, name: str | None = None, agent_id: int | None = None, since_id: int | None = None, limit: int = 50
    ) -> Reply:
        """Get the newest ``limit`` questions of an agent, or of all; with ``since_id`` the first ones after that one.

        Only the operator may. A reply has at least one question and otherwise at most 256 KiB of them: while
        ``more`` is true, ask again.
        """
        return self._make_call(0x78, locals())

    def read_file(
        self, path: str, offset: int = 0, limit: int | None = None, encoding: Literal["utf-8", "base64"] = "utf-8"
    ) -> Reply:
        """Read a file, or ``limit`` bytes of it from ``offset`` on.

        Binary data needs base64 as ``encoding``. A relative path is relative to this process.
        """
        return self._make_call(0x02, locals())

    def write_file(
        self,
        path: str,
        content: str | bytes,
        mode: Literal["write", "append"] = "write",
        encoding: Literal["utf-8", "base64"] = "utf-8",
    ) -> Reply:
        """Write ``content`` to a file: replace it atomically, or (``append``) append to it.

        Bytes are sent as base64. A relative path is relative to this process.
        """
        return self._make_call(0x03, locals())

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
        """Run ``command``, a bash command line or an argv, for the caller or in an agent's jail.

        ``name`` or ``agent_id`` selects the agent; without them it runs where the caller runs (on the host, or in the
        caller's jail). When the command ends all that it started is killed, after ``timeout`` seconds at the
        latest. ``cwd`` is a path in the jail, if there is one. ``env`` is added to the command's environment. A
        ``timeout`` of 0 is none.

        Without an agent a relative ``cwd`` is relative to this process.
        """
        return self._make_call(
            0x04, locals(), {"agent_id": "id"}, wait=timeout + JAIL_ENTRY_SECONDS if timeout else None
        )

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
        """Like :meth:`exec`, with the output as it is written.

        Iterate over parts with ``stream`` and ``text``; then ``executed`` is the reply. Use it in a ``with`` block
        (Trio: ``async with``): leaving that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x04, {**locals(), "stream": True}, {"agent_id": "id"})

    def register_name(self, name: str) -> Reply:
        """Add a name under which the caller's mailbox can be reached."""
        return self._make_call(0x23, locals())

    def send_message(self, message: object, to: int | str | None = None, to_name: str | None = None) -> Reply:
        """Send a message to one mailbox; exactly one of ``to`` (an id or a name) and ``to_name``."""
        return self._make_call(0x20, locals(), null="message")

    def recv_messages(self, max_messages: int = 10, timeout: float = 0.0, *, lease: float | None = None) -> Reply:
        """Receive the oldest messages of the caller's mailbox, at most ``max_messages``.

        Waits up to ``timeout`` seconds for the first. With ``lease``, in seconds from 1 to 3600, messages come back
        when it ends, or the caller's life does, unless ACK has removed them.
        """
        return self._make_call(0x21, locals(), {"max_messages": "max"}, wait=timeout)

    def ack_messages(self, ids: Sequence[int]) -> Reply:
        """Remove messages that the caller has leased, by their ``ids``.

        ``NotFound`` if the lease of some has ended; the others are removed, and ``details`` have ``acked`` and
        ``ids``.
        """
        return self._make_call(0x24, locals())

    def mail(
        self,
        name: str | None = None,
        *,
        dead: bool | None = None,
        limit: int | None = None,
        after: int | None = None,
        requeue: Sequence[int] | None = None,
        drop: Sequence[int] | None = None,
    ) -> Reply:
        """List the messages that wait in the mailbox of ``name``, or its ``dead`` letters, without taking them.

        ``requeue`` lets dead letters of these ids wait again, ``drop`` removes messages. The operator sees contents
        and may change something; a parent sees how many its children have. A reply has at least one message, and at
        most 1 MiB. Without ``name``, for the operator: which mailboxes aren't empty, those with dead letters first,
        then the fullest.
        """
        return self._make_call(0x25, locals())

    def broadcast(self, message: object, include_self: bool = False) -> Reply:
        """Send a message to all mailboxes."""
        return self._make_call(0x22, locals(), null="message")

    def store(
        self,
        key: str,
        value: object,
        scope: Literal["global", "agent", "session"] = "global",
        ttl: float | None = None,
        if_version: int | None = None,
    ) -> Reply:
        """Store ``value``, any JSON, under ``key``; after ``ttl`` seconds it doesn't exist any more.

        ``scope`` is global, agent (the caller's own, kept over restarts) or session (its own until it has ended).
        With ``if_version`` only if the key has that version, 0 being none; otherwise ``conflict`` with the present
        ``version``.
        """
        return self._make_call(0x30, locals(), null="value")

    def fetch(
        self, key: str, scope: Literal["global", "agent", "session"] | None = None, agent: str | None = None
    ) -> Reply:
        """Fetch the value of ``key``; without ``scope`` the first one of session, agent and global that has it.

        With ``agent``, which only the operator may give, that agent's own: the name of an agent, or of its account,
        such as ``boss/worker``.
        """
        return self._make_call(0x31, locals())

    def delete(
        self, key: str, scope: Literal["global", "agent", "session"] | None = None, if_version: int | None = None
    ) -> Reply:
        """Delete ``key``; without ``scope`` in the first one of session, agent and global that has it.

        With ``if_version`` only if the key has that version; otherwise ``conflict`` with the present ``version``.
        """
        return self._make_call(0x32, locals())

    def keys(
        self,
        prefix: str = "",
        scope: Literal["global", "agent", "session"] | None = None,
        limit: int = 1000,
        after: str = "",
        agent: str | None = None,
    ) -> Reply:
        """List the keys that begin with ``prefix`` and that the caller may fetch, at most ``limit``.

        Without ``scope`` they are those of all scopes; ``after`` is the key before the first one. ``agent`` as for
        FETCH.
        """
        return self._make_call(0x33, locals())

    def subscribe(
        self,
        event_types: Sequence[str],
        *,
        agents: Sequence[int | str] | None = None,
        prefix: str | None = None,
        since: int | None = None,
        boot: str | None = None,
    ) -> Reply:
        """Subscribe to events of these types: exact ones, or with ``*`` at the end. POLL_EVENTS gets them.

        ``agents`` are ids or names: only what concerns one of these. ``prefix``: of STATE_CHANGED only keys that
        begin with it. With ``since`` also the events with a higher ``seq`` that are kept; ``boot`` is the one that
        ``since`` is of.
        """
        return self._make_call(0x60, locals())

    def follow_events(
        self,
        event_types: Sequence[str],
        agents: Sequence[int | str] | None = None,
        prefix: str | None = None,
        since: int | None = None,
        *,
        boot: str | None = None,
    ) -> Events:
        """Events of these types as they happen: exact ones, or with ``*`` at the end.

        ``agents`` are ids or names: only what concerns one of these. ``prefix``: of STATE_CHANGED only keys that
        begin with it. With ``since`` first those with a higher ``seq`` that are kept; ``boot`` is the one that it
        is of.

        Iterate over events; ``missed`` counts those that were dropped before they could be read, and
        ``boot_changed`` tells that ``since`` is of an earlier run of the kernel. Use it in a ``with`` block (Trio:
        ``async with``): leaving that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x60, {**locals(), "stream": True})

    def unsubscribe(self, event_types: Sequence[str] | None = None, all: bool = False) -> Reply:
        """End subscriptions to these types, written as in SUBSCRIBE, or ``all``."""
        return self._make_call(0x61, locals())

    def poll_events(
        self, max_events: int = 100, timeout: float = 0.0, *, since: int | None = None, boot: str | None = None
    ) -> Reply:
        """Get events of the caller's subscriptions, at most ``max_events``, oldest first.

        Waits up to ``timeout`` seconds for the first. ``since`` gets those with a higher ``seq`` again, as far as
        they are kept; ``boot`` is the one that it is of.
        """
        return self._make_call(0x62, locals(), {"max_events": "max"}, wait=timeout)

    def emit_event(self, event_type: str | None = None, data: object = None) -> Reply:
        """Publish an event of type ``CUSTOM``, ``TASK_STEP`` or ``custom.NAME``, with JSON ``data`` of at most 16 KiB.

        It reaches the caller's ancestors and descendants, the operator, and those whom rules grant it.
        """
        return self._make_call(0x63, locals())

    def think(
        self,
        prompt: str | None = None,
        image: ImageFile | None = None,
        image_mime_type: str | None = None,
        system_instruction: str | None = None,
        thinking_level: Literal["low", "medium", "high"] | None = None,
        temperature: float | None = None,
        model: str | None = None,
        *,
        messages: Sequence[Any] | None = None,
        images: Sequence[ImageFile] | None = None,
        max_tokens: int | None = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Literal["auto", "none", "required"] | None = None,
        stop: Sequence[str] | None = None,
        response_schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        class_: Literal["interactive", "normal", "batch"] | None = None,
    ) -> Reply:
        """Ask the model: ``prompt``, with the conversation before it in ``messages``, or ``messages`` alone.

        ``image`` and ``images`` belong to ``prompt``. ``max_tokens`` limits the generated tokens, thoughts
        included. ``response_schema`` is a JSON schema that the answer's text has to match. ``timeout`` in seconds
        includes the time in the queue. ``class_`` is at most the caller's own, which is the default. Another field
        that is None is left to the model's default.

        ``image`` and each of ``images`` are bytes or a file's path. ``image_mime_type`` is the type of ``image``,
        needed if its first bytes don't tell. Raises ``OSError`` if a file can't be read.
        """
        return self._make_call(0x01, locals(), {"class_": "class"}, wait=timeout)

    def think_stream(
        self,
        prompt: str | None = None,
        image: ImageFile | None = None,
        image_mime_type: str | None = None,
        system_instruction: str | None = None,
        thinking_level: Literal["low", "medium", "high"] | None = None,
        temperature: float | None = None,
        model: str | None = None,
        *,
        messages: Sequence[Any] | None = None,
        images: Sequence[ImageFile] | None = None,
        max_tokens: int | None = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Literal["auto", "none", "required"] | None = None,
        stop: Sequence[str] | None = None,
        response_schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        class_: Literal["interactive", "normal", "batch"] | None = None,
    ) -> Thoughts:
        """Like :meth:`think`, with the answer's text as it is generated.

        Iterate over pieces of text; then ``thought`` is the whole reply. Use it in a ``with`` block (Trio: ``async
        with``): leaving that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x01, {**locals(), "stream": True}, {"class_": "class"})

    def http(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        timeout: float = 30.0,
        *,
        encoding: Literal["utf-8", "base64"] | None = None,
        max_redirects: int | None = None,
    ) -> Reply:
        """Send an HTTP request, and wait for the response at most ``timeout`` seconds in all.

        ``body`` is text, bytes as base64 with that ``encoding``, or any other JSON value, which is sent as JSON. At
        most ``max_redirects`` redirects are followed, and only where the next request is allowed without asking:
        otherwise the redirect itself is the response.

        A ``body`` of bytes is sent as base64.
        """
        return self._make_call(0x50, locals(), wait=timeout)

    def http_stream(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: object = None,
        timeout: float = 30.0,
        *,
        encoding: Literal["utf-8", "base64"] | None = None,
        max_redirects: int | None = None,
    ) -> Parts:
        """Like :meth:`http`, with the response's body as it arrives.

        Iterate over parts: the first has ``status_code``, ``headers`` and ``url``, the others ``body`` and
        ``encoding``. Then ``response`` is the reply. Use it in a ``with`` block (Trio: ``async with``): leaving
        that early cancels the call. Raises the call's error.
        """
        return self._open_stream(0x50, {**locals(), "stream": True})

    def now(self) -> float:
        """The time of the kernel, in seconds since the epoch."""
        return self._make_call(0x51, locals(), convert=lambda reply: checked(reply)["now"])

    def sleep(self, seconds: float | None = None, *, until: float | None = None) -> float:
        """Wait for ``seconds``, or until that instant in seconds since the epoch, at most a day; returns the time
        then.
        """
        return self._make_call(0x52, locals(), wait=None, convert=lambda reply: checked(reply)["now"])

    def random(self, count: int) -> bytes:
        """Get ``count`` random bytes, fit for keys."""
        return self._make_call(
            0x53, locals(), {"count": "bytes"}, convert=lambda reply: a2b_base64(checked(reply)["data"])
        )

    def tools(self, server: str | None = None) -> Reply:
        """List the tools of all MCP servers, or of one ``server``.

        A server that doesn't run yet is started.
        """
        return self._make_call(0x90, locals(), wait=None)

    def tool_call(self, tool: str, arguments: Mapping[str, Any] | None = None, timeout: float | None = None) -> Reply:
        """Call a tool, ``SERVER.TOOL``, with ``arguments`` as its schema says, and wait for the result.

        ``timeout`` in seconds includes the start of the server; without it the configuration's holds.
        """
        return self._make_call(0x91, locals(), wait=None)
