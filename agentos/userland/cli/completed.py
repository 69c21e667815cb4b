"""What a shell completes for arguments: names that the running kernel knows now.

Used as ``shell_complete`` of arguments and options. Where no kernel runs, or it doesn't answer in ``ANSWER_SECONDS``,
there is nothing to complete: a message would be printed into the line that is being typed.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from agentos_sdk import AgentOSClient, AgentOSError, default_socket

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Items = list["str | CompletionItem"]

ANSWER_SECONDS = 1.0
SAFE_WORD = re.compile(r"[A-Za-z0-9_@%+=./][A-Za-z0-9_@%+=./-]*")  # a shell takes it as it is, and for no option


def ask(ctx: click.Context, question: Callable[[AgentOSClient], Iterable[str]]) -> set[str]:
    """The words that the kernel answers which the command would use; none if there is no answer.

    Agents choose some of them: what a shell might take for more than a word isn't put into its line.
    """
    try:
        with AgentOSClient(ctx.params.get("socket_path") or default_socket(), ANSWER_SECONDS) as client:
            return {word for word in question(client) if SAFE_WORD.fullmatch(word)}
    except (AgentOSError, OSError):
        return set()


def agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of agents, also of those that have ended."""
    names = ask(ctx, lambda client: (agent["name"] for agent in client.list_agents(all=True)))
    return beginning(names - typed(ctx, param), incomplete)


def agents_and_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Names of agents and of groups."""
    fields = ("name", "supervisor")
    names = ask(ctx, lambda client: (agent[field] for agent in client.list_agents(all=True) for field in fields))
    return beginning(names - {"root"} - typed(ctx, param), incomplete)


def agent_first(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The name of an agent as the first word, files after it."""
    return files(ctx, param, incomplete) if typed(ctx, param) else agents(ctx, param, incomplete)


def agent_colon(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """``NAME:`` of an agent, or a file here."""
    names = [f"{name}:" for name in agents(ctx, param, incomplete)] if "/" not in incomplete else []
    return [*names] or files(ctx, param, incomplete)


def approvals(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Ids of the calls that wait for a person."""
    found = ask(ctx, lambda client: (str(each["id"]) for each in client.approvals().get("pending", ())))
    return beginning(found - typed(ctx, param), incomplete)


def state_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Global keys of the state."""
    keys = ask(ctx, lambda client: client.keys(prefix=incomplete, scope="global").get("keys", ()))
    return beginning(keys, incomplete)


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Files, as the shell completes them."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def beginning(names: set[str], incomplete: str) -> Items:
    return [name for name in sorted(names) if name.startswith(incomplete)]


def typed(ctx: click.Context, param: click.Parameter) -> set[str]:
    """The words that an argument of several words has already."""
    given = ctx.params.get(param.name or "")
    return set(map(str, given)) if isinstance(given, tuple | list) else set()
