"""Results of tools: pydantic models, whose JSON schemas MCP clients see as output schemas."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field


class Result(BaseModel):
    """A tool's structured result: the fields of the kernel's reply that a model can use."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, reply: object) -> Self:
        return cls.model_validate(reply)


class FileContent(Result):
    content: str
    size: int = Field(description="bytes of the whole file")


class Written(Result):
    bytes_written: int


class Executed(Result):
    stdout: str
    stderr: str
    exit_code: int = Field(description="128 + the signal if one killed the command")
    timed_out: bool
    truncated: bool = Field(description="whether not all output was kept")


class Usage(Result):
    input: int
    output: int
    thinking: int
    cache_read: int = Field(0, description="of input: read from the vendor's prompt cache")
    cache_creation: int = Field(0, description="of input: written to it")


class Thought(Result):
    content: str
    tokens: int = Field(description="of question, thoughts and answer together")
    model: str
    finish_reason: str = Field(description="stop, length, tool_calls or content_filter")
    usage: Usage


class HttpResponse(Result):
    status_code: int
    headers: Mapping[str, str]
    body: str
    encoding: Literal["utf-8", "base64"] = Field(description="of the body")
    truncated: bool
    url: str = Field(description="the last one, after redirects")
    elapsed_ms: float


class Spawned(Result):
    id: int
    name: str
    pid: int
    status: str


class Agent(Result):
    id: int
    name: str
    pid: int | None
    state: str = Field(
        description="starting, running, paused, stopping, backing_off, waiting, stopped, exited or failed",
    )
    parent: int | None = Field(description="id of the agent that spawned it")
    restarts: int
    uptime_ms: int
    running: bool


class Agents(Result):
    agents: Sequence[Agent]

    @classmethod
    def of(cls, reply: object) -> Self:
        return cls.model_validate({"agents": reply}, from_attributes=True)


class Killed(Result):
    killed: bool
    agent_id: int


class Paused(Result):
    paused: bool
    agent_id: int


class Resumed(Result):
    resumed: bool
    agent_id: int


class AgentState(Result):
    name: str
    state: str


class Restarted(Result):
    agents: Sequence[AgentState]


class Ended(Result):
    exit_code: int | None
    signal: int | None = Field(description="number of the signal that killed it")
    reason: str


class LogLine(Result):
    at: float = Field(description="seconds since the epoch")
    stream: str = Field(description="stdout, stderr or kernel")
    text: str


class Logs(Result):
    lines: Sequence[LogLine]
    missed: int = Field(description="lines before the first of these that were dropped")


class Sent(Result):
    delivered_to: int = Field(description="id of the receiver")


class Message(Result):
    from_id: int
    from_name: str
    message: Any = Field(description="any JSON")
    sent_at: float = Field(description="seconds since the epoch")


class Messages(Result):
    messages: Sequence[Message]


class StateValue(Result):
    exists: bool
    value: Any = Field(description="any JSON; null if it doesn't exist")
    scope: str | None
    version: int


class Stored(Result):
    key: str
    version: int


class Deleted(Result):
    deleted: bool


class StateKeys(Result):
    keys: Sequence[str]
    next: str | None = Field(description="give it as after to get the keys that follow")


class Approval(Result):
    id: int
    call: str
    shown: str = Field(description="what the call is about to do")
    rule: str = Field(description="the rule that asks")
    asked_at: float = Field(description="seconds since the epoch")
    expires_at: float
    digest: str = Field(description="SHA-256 of all that the approval is bound to")


class Approvals(Result):
    approvals: Sequence[Approval]
