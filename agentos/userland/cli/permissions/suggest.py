"""``agentos permissions suggest``: rules for what was approved and done, as TOML, from the audit log's files."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentos.userland.cli import completed
from agentos.userland.cli.audit.audit import explain_no_match, log_directory, make_query
from agentos.userland.cli.common import json_option, plural, print_lines
from agentos.userland.cli.kernel.run import state_dir_option
from agentos.userland.cli.mcp.table import format_key, format_value
from agentos.userland.cli.times import FORMS

if TYPE_CHECKING:
    from agentos.permissions.approvals.suggestion import Suggestion, Use

_OWN_SET = re.compile(r"ask .* \(permissions\.(.+)\)")
_OF_LEVEL = re.compile(r".* \(level \w+\)")  # a level's question comes after all grants


@click.command()
@click.argument("agent", metavar="AGENT", shell_complete=completed.agents)
@click.option("--since", metavar="WHEN", help=f"From then on: {FORMS}.")
@state_dir_option()
@json_option
def suggest(agent: str, since: str | None, state_dir: Path | None, as_json: bool) -> None:
    """Suggest rules for what AGENT did with approval.

    They are the smallest that allow it, as TOML for the configuration file: the very paths, commands and hosts.
    It is read from the audit log, so no kernel has to run.
    """
    from agentos.permissions.approvals.suggestion import find_uses, suggest_rules
    from agentos.permissions.patterns.base import Names
    from agentos.services.audit.query import iterate_all

    query = make_query(agent, (), None, since, None)
    with log_directory(state_dir) as directory:
        uses = find_uses(iterate_all(directory, query))
        if not uses and not as_json:
            explain_no_match(directory, query)
    suggestion = suggest_rules(uses, Names(os.path.expanduser("~"), workspace="/workspace", code="/agent"))
    left = {use for use, _ in suggestion.left}
    in_the_way = sorted({use.rule for use in uses if use not in left and not _OF_LEVEL.fullmatch(use.rule)})
    rest = [{"call": use.call, "about": use.about, "calls": use.times, "reason": why} for use, why in suggestion.left]
    value = {**suggestion.as_set(), "in_the_way": in_the_way, "left": rest}
    print_lines(toml_lines(find_set_name(uses, agent), suggestion, in_the_way), value, as_json)


def find_set_name(uses: "Sequence[Use]", agent: str) -> str:
    """The set of the configuration file whose rules asked; the agent's name if there is no such set, or several."""
    names = {found[1] for use in uses if (found := _OWN_SET.fullmatch(use.rule)) is not None}
    return names.pop() if len(names) == 1 else agent


def toml_lines(name: str, suggestion: "Suggestion", in_the_way: list[str]) -> Iterator[str]:
    """The rules in a table of the configuration file, each with the number of calls; the rest as comments."""
    if not suggestion.grants and not suggestion.left:
        yield "# nothing was done with a person's approval"
        return
    if suggestion.grants:
        yield f"[permissions.{format_key(name)}.allow]"
    for kind, patterns in suggestion.grants.items():
        yield f"{kind} = ["
        yield from (f"  {format_value(text)},  # {plural(times, 'call')}" for text, times in patterns.items())
        yield "]"
    if suggestion.grants and in_the_way:
        yield "# These rules still ask, before any grant: remove or narrow them:"
        yield from (f"#   {rule}" for rule in in_the_way)
    if suggestion.left:
        yield "# No rule allows this and nothing beside it:"
        yield from (f"#   {use}: {why}" for use, why in suggestion.left)
