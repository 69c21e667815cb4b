"""``agentos check``: validates a configuration file."""

from pathlib import Path

import click

from agentos.userland.cli.common import check_default, plural, printable
from agentos.userland.cli.kernel.run import default_state_dir, print_mistakes
from agentos.userland.cli.main import CONFIG


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
    from agentos.config.exposed_files import find_exposed_files
    from agentos.config.host_check import (
        find_packages,
        list_mcp_problems,
        missing_model,
        missing_notify_programs,
        unreachable_files,
        unreadable_secrets,
        unstartable_agents,
        unstartable_programs,
        unusable_images,
        unusable_repositories,
    )
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
        click.echo(printable(f"{file}: {found}; all but {faulty} would start"), err=True)
    else:
        click.echo(printable(f"{file}: fine: {found}"))
    for mistake in unreachable_files(config):
        click.echo(printable(mistake))
    state = Path(config.kernel.state_dir or default_state_dir(str(config.file))).absolute()
    lacking = list(unusable_images(config, state))
    for problem in lacking:
        click.echo(printable(f"on this host {problem}"))
    for problem in unstartable_programs(config):
        click.echo(printable(f"on this host {problem}"))
    for problem in (*unusable_repositories(config), *find_exposed_files(config)):
        click.echo(printable(problem))
    missing = [package for package in find_packages(config).values() if package is not None]
    for problem in (*missing, *unreadable_secrets(config)):
        click.echo(printable(f"on this host the kernel would not start: {problem}"))
    for problem in list_mcp_problems(config):
        click.echo(printable(problem))
    for problem in missing_notify_programs(config):
        click.echo(printable(f"on this host no person would be notified: {problem}"))
    if (why := missing_model(config)) is not None:
        click.echo(printable(f"on this host no model can be asked: {why}"))
    for why, names in unstartable_agents(config).items() if agents else ():
        click.echo(printable(f"on this host {', '.join(names)} would not start: {why}"))
    if config.faults or lacking:
        raise SystemExit(1)


def count_agents(group: object) -> tuple[int, int]:
    """The numbers of agents and supervisors in a tree, its root included."""
    children = getattr(group, "children", None)
    if children is None:
        return 1, 0
    below = [count_agents(child) for child in children]
    return sum(agents for agents, _ in below), 1 + sum(supervisors for _, supervisors in below)
