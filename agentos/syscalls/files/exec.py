"""Handler of EXEC: parses a command, checks permission, runs it and builds the reply."""

import math
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import trio
from attrs import frozen

from agentos.agents.commands.named_files import NamedFiles, identity_of, root_for
from agentos.agents.commands.output_streams import Live, Name, Stream
from agentos.agents.commands.run import (
    SHELL,
    BesideAgent,
    CommandRequest,
    CommandResult,
    OnHost,
    OwnJail,
)
from agentos.agents.jail import layout
from agentos.agents.jail.root_access import Ended
from agentos.agents.life.leftover_processes import RUN_VARIABLE
from agentos.agents.life.life import PATH, LifeDeps, home
from agentos.agents.registry import Agent
from agentos.kernel.background import Background
from agentos.kernel.call import Call, Gone
from agentos.kernel.caller import Caller
from agentos.kernel.ports import Right
from agentos.kernel.prepared import Prepared
from agentos.kernel.syscall import Syscall
from agentos.permissions.approvals.page import number_strange
from agentos.permissions.approvals.text import describe_exec, describe_field, describe_text, find_places
from agentos.permissions.exec_request import ExecRequest
from agentos.sandbox.files.root_files import WORKSPACE
from agentos.sandbox.policy import Program
from agentos.shell.reader import parse_text, parse_words
from agentos.shell.reading import Reading
from agentos.shell.variables import names_not_plain, names_read_by_bash
from agentos.syscalls.json_text import encode_json
from agentos_sdk.calls.host import Exec, Output
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest
from agentos_sdk.opcodes import Op

from .terminal import Typist

MAX_TIMEOUT_SECONDS = 3600.0  # seconds; the largest timeout
MAX_INLINE_CHARS = (
    200  # characters of a command that are read in the event loop, in 1 ms at worst; longer ones in a thread
)
SHELL_ARGV = (
    SHELL,
    "--noprofile",
    "--norc",
    "-p",
    "-c",
    "--",
)  # -p: import no functions and options from the environment
ON_HOST = {"PATH": PATH, "LANG": "C.UTF-8", "SHELL": SHELL}
FAILURE = {"stdout": "", "stderr": "", "exit_code": -1}


@frozen(eq=False)
class Commands:
    """Answers EXEC."""

    deps: LifeDeps
    background: Background

    async def prepare(self, caller: Caller, request: Exec) -> Prepared:
        """Run a command until it ends."""
        check_request(request)
        agent = None  # to run it beside: an agent's own by default. None: on the host or in a new jail
        if caller.kind == "agent" and request.name is None and request.id is None:
            agent = self.deps.registry.find(caller.id, None)
        elif request.name is not None or request.id is not None:
            agent = self.deps.registry.find(request.id, request.name)
        if request.tty is not None and agent is None and caller.kind == "guest":
            raise BadRequest("tty: expected the name of an agent: a guest's own commands have no terminal")
        jailed = agent.spec.jailed if agent is not None else caller.kind == "guest"
        directory = await self._directory(agent, jailed, request.cwd)
        reading = await self._read(caller, request.command)
        wanted = ExecRequest(reading, directory, jailed, tuple(names_not_plain(request.env)), digest_input(request))
        another = agent if agent is not None and agent.id != caller.id else None

        async def act(call: Call) -> bytes:
            tty = request.tty
            if request.stream or tty is not None:
                call.require_stream("stream" if tty is None else "tty")
            if tty is None and call.input is not None:
                call.refuse_input()
            own = self._environment(caller, agent)
            given = {name: value for name, value in own.items() if not names_read_by_bash([name])}
            more = {"TERM": tty.term} if tty is not None else {}
            size = (tty.rows, tty.cols) if tty is not None else None
            line = request.command
            argv = (*SHELL_ARGV, line) if isinstance(line, str) else tuple(line)
            environment = {**given, **more, **request.env}
            program = Program(argv, environment, directory, stdin=request.stdin.encode(), terminal=size)
            out, err = open_streams(call) if request.stream or tty is not None else (Stream(), Stream())
            type_into = Typist(call.input.take).type_into if call.input is not None else None
            timeout = request.timeout or math.inf
            command = CommandRequest(program, timeout, caller.kind, caller.id, out, err, type_into)
            where = BesideAgent.of(agent) if agent is not None else OwnJail() if command.kind == "guest" else OnHost()
            done = await self.deps.health.commands.run(where, command)
            await out.end()
            await err.end()
            await caller.allowance.wait_for_reply_room()  # a caller that doesn't read its replies gets no more of them
            return await encode_result(done, out, err)

        @cache
        def look() -> tuple[str, bytes]:  # once: what is shown is what the approval is bound to
            return look_at_command(request, wanted, agent)

        right = Right("exec", wanted, another.id if another is not None else None)
        return Prepared(
            (right,),
            act,
            about=f"beside {another.name}: {wanted}" if another is not None else None,
            shown=lambda: look()[0],
            identity=lambda: look()[1],
        )

    async def _read(self, caller: Caller, command: str | Sequence[str]) -> Reading:
        parse: Callable[[Any], Reading] = parse_text if isinstance(command, str) else parse_words
        if (len(command) if isinstance(command, str) else sum(map(len, command))) <= MAX_INLINE_CHARS:
            return parse(command)
        return await caller.table.reader.run(caller, parse, command)

    async def _directory(self, agent: Agent | None, jailed: bool, cwd: str | None) -> str:
        own = agent.spec.cwd if agent is not None else None
        if jailed:
            try:
                if cwd is None:
                    return own or WORKSPACE
                return layout.directory_of(agent.spec if agent is not None else None, cwd) or WORKSPACE
            except layout.LayoutError as error:
                raise BadRequest(str(error)) from None
        if cwd is None:
            return own or (self.deps.host_view.base if agent is None else "/")
        path = home() + cwd[1:] if cwd == "~" or cwd.startswith("~/") else cwd
        # Symlinks are resolved once: the command runs in the checked directory, unless it is replaced meanwhile.
        return await trio.to_thread.run_sync(os.path.realpath, os.path.join(self.deps.host_view.base, path))

    def _environment(self, caller: Caller, agent: Agent | None) -> Mapping[str, str]:
        """An agent's own environment, or that of a login shell; never the kernel's."""
        if agent is not None:
            return agent.life.jail.parts.environment if agent.life.jail is not None else {}
        if caller.kind == "guest":
            return {}
        name = user_name()
        return {**ON_HOST, "HOME": home(), "USER": name, "LOGNAME": name, RUN_VARIABLE: self.deps.run.id}

    def syscalls(self) -> tuple[Syscall, ...]:
        return (
            Syscall(
                Op.EXEC,
                Exec,
                prepare=self.prepare,
                failure=FAILURE,
                audit="intent",
                takes_chunks=True,
                background=self.background,
            ),
        )


def check_request(request: Exec) -> None:
    """Raise ``BadRequest`` for requests that are invalid for every caller."""
    words = [request.command] if isinstance(request.command, str) else list(request.command)
    if not words or not words[0]:
        raise BadRequest("command: expected a line for the shell, or a program and its arguments")
    if not 0 <= request.timeout <= MAX_TIMEOUT_SECONDS:
        raise BadRequest(
            f"timeout: expected at most {MAX_TIMEOUT_SECONDS:g} seconds, or 0 for none, got {request.timeout:g}"
        )
    if request.tty is not None and request.stdin:
        raise BadRequest("stdin: expected none with tty: what is typed comes in CHUNK frames")
    for name in request.env:
        if not name or "=" in name or name.startswith("AGENTOS_"):
            raise BadRequest(f"env.{name}: expected a variable's name, without '=' and not AGENTOS_... (ours)")
    for name in names_read_by_bash(request.env):
        raise BadRequest(f"env.{name}: bash reads this before its line, and what it does there can't be checked")


def digest_input(request: Exec) -> str:
    """What a command gets besides its words, for the exact text of a remembered answer; empty if that is nothing."""
    if request.tty is not None:
        return "a terminal"
    if not request.env and not request.stdin:
        return ""
    given = codec.encode([sorted(request.env.items()), request.stdin])
    return f"an environment and standard input, sha256 {sha256(given).hexdigest()}"


def look_at_command(request: Exec, wanted: ExecRequest, agent: Agent | None) -> tuple[str, bytes]:
    """What a person sees of a command, and the digest of the files that it names. Blocks: it reads those files."""
    places, _ = find_places(wanted.reading, wanted.directory)  # those that are named as changeable are of these, too
    paths = list(dict.fromkeys(path for _, path in places))
    try:
        with root_for(agent, wanted.jailed)() as root:
            files = NamedFiles(root, identity_of(agent))
            digest = files.digest(paths)
            shown = describe_exec(request.command, wanted.directory, files.is_changeable)
    except Ended:
        digest, shown = b"", describe_exec(request.command, wanted.directory, lambda path: False)
    lines = [shown]
    if agent is not None:
        lines.append(describe_field("in the jail of " if wanted.jailed else "on the host, as ", agent.name))
    for name, value in request.env.items():
        lines += describe_field("env: ", f"{name}={value}"), *number_strange(name, value)
    if request.stdin:
        lines.append(describe_text("with this standard input", request.stdin))
    if request.tty is not None:
        lines.append("with a terminal: what is typed into it isn't known yet")
    return "\n".join(lines), digest


def user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def open_streams(call: Call) -> tuple[Live, Live]:
    """Streams that send output as it arrives; the command is cancelled when the connection is gone."""

    async def send(name: Name, text: str) -> None:
        try:
            await call.send(codec.encode(Output(stream=name, text=codec.Text(text))))
        except Gone:
            call.scope.cancel()
            await trio.lowlevel.checkpoint()

    return Live(name="stdout", send=send), Live(name="stderr", send=send)


async def encode_result(done: CommandResult, out: Stream, err: Stream) -> bytes:
    """Encode the reply in pieces; other tasks run between two of them.

    The exit code is as a shell reports it: 128 plus the number of a signal.
    """
    status = done.status
    return b'{"success":true,"stdout":"%s","stderr":"%s","exit_code":%d,"timed_out":%s,"truncated":%s}' % (
        await encode_json(out.kept),
        await encode_json(err.kept),
        status.code if status.code is not None else 128 + (status.signal or 0),
        codec.encode(done.timed_out),
        codec.encode(out.truncated or err.truncated),
    )
