"""``agentos check``: validates a configuration file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentos.userland.cli.common import check_default, plural, print_error, printable
from agentos.userland.cli.kernel.run import default_state_dir, print_mistakes
from agentos.userland.cli.main import CONFIG

if TYPE_CHECKING:
    from agentos.config.load import Config


@click.command()
@click.argument("file", default=CONFIG, type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say everything that is wrong with a configuration file.

    The default for FILE is ./agentos.toml. Each mistake comes with its line and path. Of a valid file it says what this
    host can't do. Starts no agent. The exit status is 1 where the file is wrong, or an agent names a script, a program,
    a directory or an image that isn't there, and so would not start. What else the host lacks changes nothing: another
    may have it.
    """
    check_default(file)
    from agentos.config.host_check import unusable_images
    from agentos.config.load import ConfigError, load

    try:
        config = load(file)
    except ConfigError as error:
        print_mistakes(error.mistakes)
        raise SystemExit(1) from None
    agents, supervisors = count_agents(config.root)
    found = f"{plural(agents, 'agent')} under {plural(supervisors, 'supervisor')}"
    if config.faults:
        faulty = ", ".join(dict.fromkeys(fault.agent for fault in config.faults if fault.agent is not None))
        print_mistakes(config.faults)
        print_error(f"{file}: {found}; all but {faulty} would start")
    else:
        click.echo(printable(f"{file}: fine: {found}"))
    state = Path(config.kernel.state_dir or default_state_dir(str(config.file))).absolute()
    lacking = [f"on this host {problem}" for problem in unusable_images(config, state)]
    for problem in list_problems(config, lacking, has_agents=agents > 0):
        click.echo(printable(problem))
    if config.faults or lacking:
        raise SystemExit(1)


def list_problems(config: "Config", lacking: Sequence[str], *, has_agents: bool) -> Iterator[str]:
    """What this host can't do, in sentences; ``lacking`` are those about images."""
    from agentos.config import exposed_files, host_check

    yield from host_check.unreachable_files(config)
    yield from lacking
    for problem in host_check.unstartable_programs(config):
        yield f"on this host {problem}"
    yield from host_check.unusable_repositories(config)
    yield from exposed_files.find_exposed_files(config)
    missing = [package for package in host_check.find_packages(config).values() if package is not None]
    for problem in (*missing, *host_check.unreadable_secrets(config)):
        yield f"on this host the kernel would not start: {problem}"
    yield from host_check.list_mcp_problems(config)
    for problem in host_check.missing_notify_programs(config):
        yield f"on this host no person would be notified: {problem}"
    if (why := host_check.missing_model(config)) is not None:
        yield f"on this host no model can be asked: {why}"
    for why, names in host_check.unstartable_agents(config).items() if has_agents else ():
        yield f"on this host {', '.join(names)} would not start: {why}"


def count_agents(group: object) -> tuple[int, int]:
    """The numbers of agents and supervisors in a tree, its root included."""
    children = getattr(group, "children", None)
    if children is None:
        return 1, 0
    below = [count_agents(child) for child in children]
    return sum(agents for agents, _ in below), 1 + sum(supervisors for _, supervisors in below)
