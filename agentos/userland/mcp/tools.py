"""Tools: one function for each, from the tool's arguments to the system call that it makes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from attrs import frozen
from mcp.types import ToolAnnotations
from pydantic import Field

from agentos_sdk.calls.agents import Kill, List, Logs, Pause, Restart, Resume, Spawn, Wait
from agentos_sdk.calls.host import Exec, Read, Write
from agentos_sdk.calls.http import HTTP
from agentos_sdk.calls.messages import Recv, Send
from agentos_sdk.calls.operator.permissions import Approvals
from agentos_sdk.calls.request import Request
from agentos_sdk.calls.state import Delete, Fetch, Keys, Store
from agentos_sdk.calls.think import Think
from agentos_sdk.encoding import codec
from agentos_sdk.errors import BadRequest

from . import results
from .results import Result

Scope = Literal["global", "agent", "session"]
AnyScope = Annotated[
    Scope | None, Field(description="session and agent are your own; by default the first that has it")
]
AgentName = Annotated[str, Field(description="the agent's name")]
Timeout = Annotated[float, Field(description="seconds", ge=0)]
Encoding = Annotated[Literal["utf-8", "base64"], Field(description="base64 for binary data")]
Key = Annotated[str, Field(description="1 to 512 bytes of UTF-8")]
Path = Annotated[str, Field(description="absolute path, or relative to the directory of the kernel's configuration")]


class Call:
    """A system call: its ``request`` type, and the ``fields`` of the request without optional ones that are None.

    Raises ``BadRequest`` for a field that JSON can't write: the protocol's parser takes ``NaN`` and ``Infinity``.
    """

    def __init__(self, request: type[Request[Any]], fields: Mapping[str, Any], **optional: Any) -> None:
        self.request = request
        self.fields = {**fields, **{name: value for name, value in optional.items() if value is not None}}
        for name, value in self.fields.items():
            try:
                codec.encode(value)
            except ValueError as error:
                raise BadRequest(f"{name}: {str(error)[:1].lower()}{str(error)[1:]}") from None


@frozen
class Tool:
    """A tool: ``plan`` makes the system call of its arguments, and ``result`` is what it answers.

    Its name, description and input schema are those of ``plan``.
    """

    plan: Callable[..., Call]
    request: type[Request[Any]]
    result: type[Result]
    hints: ToolAnnotations

    @property
    def name(self) -> str:
        return self.plan.__name__


# -- Files, commands, the model, HTTP ----------------------------------------------------------------------------------


def agentos_read(
    path: Path,
    offset: Annotated[int, Field(description="byte to begin at", ge=0)] = 0,
    limit: Annotated[int, Field(description="bytes to read", ge=0)] = 1 << 18,
    encoding: Encoding = "utf-8",
) -> Call:
    """Read a file through AgentOS, by default its first 256 KiB."""
    return Call(Read, {"path": path, "offset": offset, "limit": limit, "encoding": encoding})


def agentos_write(
    path: Path,
    content: Annotated[str, Field(description="the new content, or what is appended")],
    mode: Annotated[Literal["write", "append"], Field(description="replace the file, or append to it")] = "write",
    encoding: Encoding = "utf-8",
) -> Call:
    """Write a file through AgentOS."""
    return Call(Write, {"path": path, "content": content, "mode": mode, "encoding": encoding})


def agentos_exec(
    command: Annotated[str, Field(description="a bash command line")],
    cwd: Annotated[str, Field(description="directory in the jail; by default /workspace")] = "",
    timeout: Annotated[float, Field(description="seconds; 0: none", ge=0)] = 30,
    stdin: Annotated[str, Field(description="standard input")] = "",
) -> Call:
    """Run a command in a jail that is made for it and removed afterwards: the files that it writes aren't kept."""
    return Call(Exec, {"command": command, "timeout": timeout, "stdin": stdin, "stream": True}, cwd=cwd or None)


def agentos_think(
    prompt: Annotated[str, Field(description="the question")],
    system_instruction: Annotated[str, Field(description="instructions that stand before it")] = "",
    model: Annotated[str, Field(description="a model or an alias of the kernel's configuration")] = "",
    max_tokens: Annotated[int, Field(description="limit of the generated tokens; 0: the model's", ge=0)] = 0,
    timeout: Annotated[float, Field(description="seconds, with the time in the queue; 0: the kernel's", ge=0)] = 0,
) -> Call:
    """Ask the language model of AgentOS, which shares it fairly among agents and counts its tokens."""
    return Call(
        Think,
        {"prompt": prompt, "stream": True},
        system_instruction=system_instruction or None,
        model=model or None,
        max_tokens=max_tokens or None,
        timeout=timeout or None,
    )


def agentos_http(
    url: Annotated[str, Field(description="http or https")],
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET",
    headers: Annotated[Mapping[str, str] | None, Field(description="request headers")] = None,
    body: Annotated[str, Field(description="text; for JSON set Content-Type, too")] = "",
    timeout: Timeout = 30,
) -> Call:
    """Make an HTTP request through AgentOS, by its rules about domains and with its secrets."""
    return Call(HTTP, {"url": url, "method": method, "timeout": timeout}, headers=headers, body=body or None)


# -- Agents ------------------------------------------------------------------------------------------------------------


def agentos_spawn(
    name: AgentName,
    script: Annotated[str, Field(description="absolute path of a Python program")] = "",
    command: Annotated[Sequence[str], Field(description="in place of script: a program and its arguments")] = (),
    args: Annotated[Sequence[str], Field(description="arguments of the script")] = (),
    sandboxed: Annotated[bool, Field(description="whether it runs in a jail")] = True,
    restart: Annotated[
        Literal["permanent", "transient", "temporary"],
        Field(description="restart it always, after a failure, or never"),
    ] = "temporary",
) -> Call:
    """Start an agent: a supervised process with at most your rights."""
    fields = {"name": name, "args": list(args), "sandboxed": sandboxed, "restart": restart}
    return Call(Spawn, fields, script=script or None, command=list(command) or None)


def agentos_list_agents(
    all: Annotated[bool, Field(description="also agents that have ended for good")] = False,
) -> Call:
    """List the agents that you may see."""
    return Call(List, {"all": all})


def agentos_kill(
    name: AgentName,
    grace: Annotated[float, Field(description="seconds between SIGTERM and SIGKILL", ge=0)] = 5,
) -> Call:
    """Stop an agent for good."""
    return Call(Kill, {"name": name, "grace": grace})


def agentos_pause(name: AgentName) -> Call:
    """Stop an agent's processes (SIGSTOP) until agentos_resume."""
    return Call(Pause, {"name": name})


def agentos_resume(name: AgentName) -> Call:
    """Continue a paused agent."""
    return Call(Resume, {"name": name})


def agentos_restart(name: AgentName) -> Call:
    """Stop an agent, or a group of the kernel's configuration, and start it again."""
    return Call(Restart, {"name": name})


def agentos_wait(name: AgentName, timeout: Timeout = 60) -> Call:
    """Wait until an agent has ended for good; the answer says how."""
    return Call(Wait, {"name": name, "timeout": timeout})


def agentos_logs(
    name: AgentName,
    tail: Annotated[int, Field(description="how many of the last lines", ge=1, le=1000)] = 100,
    grep: Annotated[str, Field(description="a regular expression that a line must match")] = "",
) -> Call:
    """The last lines of an agent's output."""
    return Call(Logs, {"name": name, "tail": tail}, grep=grep or None)


# -- Messages and state ------------------------------------------------------------------------------------------------


def agentos_send(
    to: Annotated[str, Field(description="the receiver's name")],
    message: Annotated[Any, Field(description="any JSON; text that is a JSON object or array is sent as that")],
) -> Call:
    """Send a message to an agent's mailbox."""
    return Call(Send, {"to_name": to, "message": message})


def agentos_recv(
    max: Annotated[int, Field(description="how many at most", ge=1, le=100)] = 10,
    timeout: Annotated[float, Field(description="seconds to wait for the first", ge=0)] = 0,
) -> Call:
    """Take the oldest messages out of your mailbox, which lasts as long as your connection."""
    return Call(Recv, {"max": max, "timeout": timeout})


def agentos_state_get(key: Key, scope: AnyScope = None) -> Call:
    """Get a value from the kernel's state."""
    return Call(Fetch, {"key": key}, scope=scope)


def agentos_state_set(
    key: Key,
    value: Annotated[Any, Field(description="any JSON; text that is a JSON object or array is stored as that")],
    scope: Annotated[Scope, Field(description="agent and session are your own")] = "global",
    ttl: Annotated[float | None, Field(description="seconds after which it is gone", gt=0)] = None,
    if_version: Annotated[
        int | None, Field(description="only if it has this version; 0: if there is none", ge=0)
    ] = None,
) -> Call:
    """Store a value in the kernel's state."""
    return Call(Store, {"key": key, "value": value, "scope": scope}, ttl=ttl, if_version=if_version)


def agentos_state_list(
    prefix: Annotated[str, Field(description="only keys that begin with it")] = "",
    scope: Annotated[Scope | None, Field(description="by default all")] = None,
    limit: Annotated[int, Field(description="how many at most", ge=1, le=1000)] = 100,
    after: Annotated[str, Field(description="the key before the first one")] = "",
) -> Call:
    """List keys of the kernel's state."""
    return Call(Keys, {"prefix": prefix, "limit": limit, "after": after}, scope=scope)


def agentos_state_delete(key: Key, scope: AnyScope = None) -> Call:
    """Delete a key of the kernel's state."""
    return Call(Delete, {"key": key}, scope=scope)


def agentos_approvals() -> Call:
    """List your calls that wait for a person's approval. Only the operator can decide them."""
    return Call(Approvals, {})


def _hints(
    *, reads: bool = False, destroys: bool = False, repeats: bool = False, world: bool = False
) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=reads, destructive_hint=destroys, idempotent_hint=reads or repeats, open_world_hint=world
    )


TOOLS = (
    Tool(agentos_read, Read, results.FileContent, _hints(reads=True)),
    Tool(agentos_write, Write, results.Written, _hints(destroys=True)),
    Tool(agentos_exec, Exec, results.Executed, _hints(destroys=True, world=True)),
    Tool(agentos_think, Think, results.Thought, _hints(world=True)),
    Tool(agentos_http, HTTP, results.HttpResponse, _hints(destroys=True, world=True)),
    Tool(agentos_spawn, Spawn, results.Spawned, _hints(world=True)),
    Tool(agentos_list_agents, List, results.Agents, _hints(reads=True)),
    Tool(agentos_kill, Kill, results.Killed, _hints(destroys=True)),
    Tool(agentos_pause, Pause, results.Paused, _hints(repeats=True)),
    Tool(agentos_resume, Resume, results.Resumed, _hints(repeats=True)),
    Tool(agentos_restart, Restart, results.Restarted, _hints(destroys=True)),
    Tool(agentos_wait, Wait, results.Ended, _hints(reads=True)),
    Tool(agentos_logs, Logs, results.Logs, _hints(reads=True)),
    Tool(agentos_send, Send, results.Sent, _hints()),
    Tool(agentos_recv, Recv, results.Messages, _hints(destroys=True)),
    Tool(agentos_state_get, Fetch, results.StateValue, _hints(reads=True)),
    Tool(agentos_state_set, Store, results.Stored, _hints(destroys=True, repeats=True)),
    Tool(agentos_state_list, Keys, results.StateKeys, _hints(reads=True)),
    Tool(agentos_state_delete, Delete, results.Deleted, _hints(destroys=True, repeats=True)),
    Tool(agentos_approvals, Approvals, results.Approvals, _hints(reads=True)),
)
