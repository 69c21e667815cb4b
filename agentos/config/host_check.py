"""Host checks of a configuration: finds what this host can't provide before anything is started, as doctor does."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from agentos.agents.jail import layout
from agentos.agents.jail.isolation_report import Layers, NotIsolated, judge
from agentos.agents.spec import AgentSpec, HostFault
from agentos.images.errors import BadStore, NoImage
from agentos.images.store import NAME, Images
from agentos.llm.models.api_keys import read_variables
from agentos.llm.providers.keys import choose_providers, describe_missing
from agentos.llm.settings import LLMSettings
from agentos.mcp.connection.sdk import MISSING, is_installed
from agentos.mcp.servers import read_secrets
from agentos.sandbox.inside.programs import shebang
from agentos.sandbox.report.doctor import try_layers
from agentos.sandbox.report.levels import Finding
from agentos.services.http.secrets import UnreadableSecret, read_source, read_value
from agentos_sdk.errors import Unavailable
from agentos_sdk.git_place import describe_missing_repository
from agentos_sdk.values import Layer

from .load import Config

CGROUP_LAYERS = ("memory", "pids", "cpu")


def unstartable_agents(config: Config) -> Mapping[str, Sequence[str]]:
    """Why a kernel on this host would not start some agents, with their names. Blocks: it tries every layer."""
    layers = try_layers()
    found: dict[str, list[str]] = {}
    for spec in config.root.agents():
        try:
            judge(spec, _isolation_layers(spec, layers), config.kernel.waive)
        except NotIsolated as error:
            found.setdefault(str(error), []).append(spec.name)
    return found


def unreachable_files(config: Config) -> Iterator[str]:
    """Words of agents' commands that name a file which their jail lacks. Blocks."""
    for spec in _find_sound_agents(config):
        if not spec.jailed:
            continue
        contents = layout.find_contents(spec)
        health = spec.health.command if spec.health is not None else ()
        for word in (*(spec.command or ())[1:], *spec.args, *health[1:]):
            file = os.path.normpath(config.directory / word)
            if os.path.isfile(file) and not layout.has_file(spec, word):
                yield f"{spec.name} would not find {word}: its jail lacks it: {_path_remedy(word, file, contents.code)}"
        program = layout.program_file(replace(spec, command=health or None))
        if program is not None and not (layout.has_file(spec, health[0]) and os.access(program, os.X_OK)):
            yield f"{spec.name}: health.command: expected a program in its jail, and there is no {health[0]}"


def unstartable_programs(config: Config) -> Iterator[str]:
    """Programs of agents that can't be executed: their interpreter isn't there, or isn't named. Blocks."""
    for spec in _find_sound_agents(config):
        for key, command in (("command", spec.command), ("health.command", spec.health and spec.health.command)):
            file = layout.program_file(replace(spec, command=command)) if command else None
            if command and file is not None and (fault := _find_first_line_fault(spec, file)) is not None:
                yield f"{spec.name} would not start: {key}: {command[0]}: {fault}"


def unusable_images(config: Config, state: Path) -> Iterator[str]:
    """Agents whose image isn't in the store of this state directory, or lacks what they need. Blocks."""
    images = Images(state)
    for spec in config.root.agents():
        if spec.image is None or not NAME.fullmatch(spec.image):
            continue
        try:
            opened = images.open(spec.image)
            try:
                layout.complete(spec, opened)
            finally:
                opened.close()
        except (NoImage, BadStore, OSError) as error:
            yield f"{spec.name} would not start: image: {error}"
        except HostFault as error:
            yield f"{spec.name} would not start: {error}"


def unusable_repositories(config: Config) -> Iterator[str]:
    """Workspaces in which git won't work, since their repository lies elsewhere. Blocks."""
    for spec in config.root.agents():
        is_given = spec.jailed and os.path.isabs(spec.workspace) and os.path.isdir(spec.workspace)
        if is_given and (why := describe_missing_repository(spec.workspace)) is not None:
            yield f"{spec.name}: workspace: {why}"


def _find_first_line_fault(spec: AgentSpec, file: str) -> str | None:
    first = shebang.read_first_line(file)
    if first is None or (first.fault and not first.interpreter):
        return first.fault if first is not None else None
    where = "in its jail" if spec.jailed else "on this host"
    if first.fault:
        return f"its interpreter {first.interpreter} isn't there {where} ({first.fault})"
    if not (layout.has_file(spec, first.interpreter) if spec.jailed else os.path.isfile(first.interpreter)):
        return f"its interpreter {first.interpreter} isn't there {where}"
    name = first.argument.split()[0] if os.path.basename(first.interpreter) == "env" and first.argument else None
    if name and not name.startswith("-") and "=" not in name and shutil.which(name) is None:
        return f"its interpreter {name} isn't there {where}"
    return None


def _path_remedy(word: str, file: str, code: str | None) -> str:
    if code is None:
        code = os.path.dirname(file) if os.path.isabs(word) or word.startswith("..") else "."
        inside = os.path.basename(file) if code != "." else os.path.normpath(word)
        return f'set code = "{code}" and write "/agent/{inside}"'
    if os.path.commonpath([file, code]) == code:
        return f'write "/agent/{os.path.relpath(file, code)}"'
    return f"copy it to {code}, which the jail has as /agent"


def missing_model(config: Config) -> str | None:
    """Why a kernel on this host could not use a model, if the file configures one. Reads ``.env``."""
    if config.llm == LLMSettings():
        return None
    missing = describe_missing(choose_providers(config.llm, read_variables(os.environ, Path.cwd()), os.environ))
    return "; ".join(missing) or None


def missing_notify_programs(config: Config) -> Iterator[str]:
    """Why each of the programs that are told of something can't be run."""
    for key, command in (("[approvals] notify", config.approvals.notify), ("[notify] command", config.notify.command)):
        for program in command[:1]:
            if shutil.which(program if "/" not in program else str(config.directory / program)) is None:
                yield f"{key}: {program} is no program that can be run: install it, or name it by its path"


def find_packages(config: Config) -> Mapping[str, str | None]:
    """Missing optional packages that the file's tables need, by the table's name."""
    asked = {
        "[metrics]": config.metrics if config.metrics.listen else None,
        "[otel]": config.otel if config.otel.endpoint else None,
    }
    return {table: settings.missing for table, settings in asked.items() if settings is not None}


def unreadable_secrets(config: Config) -> Iterator[str]:
    """Why a kernel with this environment could not read each of the secrets, and so would not start. Blocks."""
    if config.metrics.token_from is not None:
        try:
            read_source(config.metrics.token_from, os.environ)
        except ValueError as error:
            yield f"[metrics] token_from: {error}"
    for secret in config.http.secrets:
        try:
            read_value(secret, os.environ)
        except UnreadableSecret as error:
            yield str(error)


def list_mcp_problems(config: Config) -> Iterator[str]:
    """What is unsafe, or won't work on this host, of the file's MCP servers. Blocks."""
    if config.mcp and not is_installed():
        yield f"on this host no MCP server could be used: {MISSING}"
    for server in config.mcp.values():
        if server.warning is not None:
            yield server.warning
        try:
            read_secrets(server)
        except Unavailable as error:
            yield f"on this host the MCP server {server.name} would not start: {error}"


def _find_sound_agents(config: Config) -> Iterator[AgentSpec]:
    """The agents all of whose files are there."""
    faulty = {fault.agent for fault in config.faults}
    return (spec for spec in config.root.agents() if spec.name not in faulty)


def _isolation_layers(spec: AgentSpec, found: Mapping[str, Finding]) -> Layers:
    """The isolation layers that this agent would have, as far as that is known without starting it."""
    return {
        name: Layer(
            one.asked and not (name == "net_ns" and spec.network == "host"),
            one.works if spec.jailed else name == "rlimits" or _is_grouped(name, one),
            one.mechanism,
            reason=(one.reason or "without a jail nothing bounds it") + (f" ({one.remedy})" if one.remedy else ""),
        )
        for name, one in found.items()
    }


def _is_grouped(name: str, one: Finding) -> bool:
    return name in CGROUP_LAYERS and one.mechanism.startswith("cgroup")
