"""``agentos dashboard``: prints or opens a link to the dashboard of the running kernel."""

import webbrowser

import click

from .common import Failed, json_option, print_json
from .run import find_state_dir


@click.command()
@click.option("--read-only", is_flag=True, help="The page may look at everything and change nothing.")
@click.option("--open", "opened", is_flag=True, help="Open the link in a browser.")
@json_option
def dashboard(read_only: bool, opened: bool, as_json: bool) -> None:
    """Print a link to the dashboard of the running kernel. It is good for one browser, within 10 minutes."""
    from agentos.private_files import describe_error
    from agentos.userland.web.links import find_link

    state_dir = find_state_dir()
    try:
        link = find_link(state_dir, "readonly" if read_only else "unrestricted")
    except OSError as error:
        raise Failed(describe_error(error, state_dir)) from None
    if link is None:
        raise Failed(
            "this kernel serves no dashboard: start it with `agentos run --dashboard`", {"code": "unavailable"}
        )
    if as_json:
        print_json({"success": True, "link": link})
    else:
        click.echo(link)
    if opened:
        webbrowser.open(link)
