"""Files that a configuration has the host run or read, and that are in the workspace of an agent."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from agentos.agents.spec import AgentSpec
from agentos.agents.workspaces.config_file import list_entries
from agentos.protected_names import OBEYED, STUBS, WATCHED

from .load import Config

log = logging.getLogger("agentos.kernel")

KINDS = ("tmp", "keep")
RUN, READ = "change it, and so run programs as the kernel's user", "read and change it"


def log_exposed_files(config: Config) -> None:
    """Log what :func:`find_exposed_files` finds. Blocks."""
    for problem in find_exposed_files(config):
        log.warning("%s", problem)


def find_exposed_files(config: Config) -> Iterator[str]:
    """Each such file, with the agents and what to do. Blocks."""
    agents = {spec.name: spec for spec in config.root.agents()}
    workspaces = dict(_list_workspaces(config, agents))
    for what, path, effect in (*_list_programs(config, agents), *_list_contents(config)):
        writers = [name for name, workspace in workspaces.items() if _can_write(workspace, path)]
        if writers:
            yield (
                f"{what}: {path} is in the workspace of {', '.join(writers)}, which can {effect}: "
                "move the file out of there, or give another workspace"
            )


def _list_workspaces(config: Config, agents: Mapping[str, AgentSpec]) -> Iterator[tuple[str, str]]:
    servers = {f"mcp.{name}": one.spec for name, one in config.mcp.items() if one.spec is not None}
    for name, spec in {**agents, **servers}.items():
        if spec.jailed and spec.workspace not in KINDS and spec.workspace_mode == "direct":
            yield name, spec.workspace


def _list_programs(config: Config, agents: Mapping[str, AgentSpec]) -> Iterator[tuple[str, str, str]]:
    """What each file is that runs on the host, its absolute path, and what an agent can do with it."""
    for name, spec in agents.items():
        if not spec.jailed:
            health = spec.health.command if spec.health is not None else ()
            named = [spec.script, spec.python, *(spec.command or ()), *health]
            for path in _list_files(spec.cwd or str(config.directory), named):
                yield f"{name}, which has no jail", path, RUN
    for key, command in (("[approvals] notify", config.approvals.notify), ("[notify] command", config.notify.command)):
        for path in _list_files(str(config.directory), command):
            yield key, path, RUN


def _list_contents(config: Config) -> Iterator[tuple[str, str, str]]:
    """The same of each file that the kernel reads."""
    sources = {
        "[http] ca_file": [f"file:{config.http.ca_file}"] if config.http.ca_file is not None else [],
        "[http] cassette": [f"file:{config.http.cassette}"] if config.http.cassette is not None else [],
        "[llm] cassette": [f"file:{config.llm.cassette}"] if config.llm.cassette is not None else [],
        "[metrics] token_from": [config.metrics.token_from or ""],
        **{f"[[http.secrets]] {secret.name}": [secret.source] for secret in config.http.secrets},
        **{f"[llm.providers.{name}] keys": one.keys for name, one in config.llm.providers.items()},
        **{f"[mcp.servers.{name}] env": list(one.secrets.values()) for name, one in config.mcp.items()},
    }
    for what, found in sources.items():
        for source in found:
            if source.startswith("file:"):
                yield what, source.removeprefix("file:"), READ


def _list_files(directory: str, words: Sequence[str | None]) -> Iterator[str]:
    """The files that are among the words of a command."""
    for word in words:
        path = os.path.join(directory, word or "")
        if word and os.path.isfile(path):
            yield os.path.normpath(path)


def _can_write(workspace: str, path: str) -> bool:
    """Whether an agent with this workspace can change what the path leads to."""
    inside = [entry for entry in list_entries(path) if entry.startswith(os.path.join(os.path.realpath(workspace), ""))]
    return any(
        os.path.relpath(entry, os.path.realpath(workspace)) not in (*STUBS, *OBEYED, *WATCHED) for entry in inside
    )
