"""``agentos dashboard``: prints or opens a link to the dashboard of the running kernel."""

import webbrowser
from pathlib import Path

import click

from agentos.userland.cli.common import Failed, json_option, print_json

from .run import find_state_dir


@click.command()
@click.option("--read-only", is_flag=True, help="The page shows agents, the tree and events, and changes nothing.")
@click.option("--open", "opened", is_flag=True, help="Open the link in a browser.")
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="As with `agentos run`.")
@json_option
def dashboard(read_only: bool, opened: bool, state_dir: Path | None, as_json: bool) -> None:
    """Print a link to the dashboard of the running kernel. It is good for one browser, within 10 minutes."""
    from agentos.private_files import describe_error
    from agentos.userland.web.links import find_link

    place = state_dir.absolute() if state_dir is not None else find_state_dir()
    try:
        link = find_link(place, "readonly" if read_only else "unrestricted")
    except OSError as error:
        raise Failed(describe_error(error, place)) from None
    if link is None:
        why = f"no kernel serves a dashboard with the state in {place}: start one with `agentos run --dashboard`"
        raise Failed(f"{why}, or name its state directory with --state-dir", {"code": "unavailable"})
    if as_json:
        print_json({"success": True, "link": link})
    else:
        click.echo(link)
    if opened:
        webbrowser.open(link)
