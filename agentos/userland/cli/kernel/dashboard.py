"""``agentos dashboard``: prints or opens a link to the dashboard of the running kernel, lists links, and ends one."""

import time
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.userland.cli.common import Failed, json_option, print_json, print_table
from agentos.userland.cli.times import format_time
from agentos_sdk.encoding.quantities import EXPECTED_DURATION, seconds

from .run import find_state_dir, state_dir_option

if TYPE_CHECKING:
    from agentos.userland.web.links import Role

OTHERS_END = 24 * 3600.0  # seconds after which a viewer's and an approver's link ends


def read_duration(ctx: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The seconds of ``--for``."""
    length = None if text is None else seconds(text)
    if text is not None and not length:
        raise click.BadParameter(f"expected {EXPECTED_DURATION}, got {text!r}")
    return length


@click.command()
@click.option("--viewer", is_flag=True, help="The link shows agents, events, logs and usage, and changes nothing.")
@click.option("--with-contents", is_flag=True, help="With --viewer: also questions to the model, audit log and files.")
@click.option("--approver", is_flag=True, help="The link shows what a viewer's does, and decides approvals.")
@click.option("--for", "length", metavar="TIME", callback=read_duration,
              help="How long its session lasts; default: 1d, an operator's 12 hours after its last use.")  # fmt: skip
@click.option("--open", "opened", is_flag=True, help="Open the link in a browser.")
@click.option("--links", "listed", is_flag=True, help="List the links that are good, and the browsers that use them.")
@click.option("--revoke", metavar="ID", help="End the link with this id, and the session of its browser.")
@state_dir_option()
@json_option
def dashboard(
    viewer: bool, with_contents: bool, approver: bool, length: float | None, opened: bool, listed: bool,
    revoke: str | None, state_dir: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print a link to the dashboard of the running kernel. It is good for one browser, within 10 minutes."""
    making = viewer or with_contents or approver or length is not None or opened
    if (listed and revoke is not None) or ((listed or revoke is not None) and making):
        raise click.UsageError("--links and --revoke are for links that exist: leave the other options out")
    if viewer and approver:
        raise click.UsageError("--viewer and --approver exclude each other")
    if with_contents and not viewer:
        raise click.UsageError("--with-contents is for --viewer")
    place = state_dir.absolute() if state_dir is not None else find_state_dir()
    if listed or revoke is not None:
        show_links(place, revoke, as_json)
    else:
        role: Role = "viewer-with-contents" if with_contents else "viewer" if viewer else "operator"
        give_link(place, "approver" if approver else role, length, opened, as_json)


def give_link(place: Path, role: "Role", length: float | None, opened: bool, as_json: bool) -> None:
    """Make a link and print it."""
    from agentos.private_files import describe_error
    from agentos.userland.web.links import find_link

    if length is None and role != "operator":
        length = OTHERS_END
    try:
        link = find_link(place, role, None if length is None else time.time() + length)
    except OSError as error:
        raise Failed(describe_error(error, place)) from None
    if link is None:
        raise not_served(place)
    if as_json:
        print_json({"success": True, "link": link})
    else:
        click.echo(link)
    if opened:
        webbrowser.open(link)


def show_links(place: Path, revoke: str | None, as_json: bool) -> None:
    """Print the links, or end one."""
    from agentos.private_files import describe_error
    from agentos.userland.web.control import ask_links

    try:
        reply = ask_links(place, revoke)
    except OSError as error:
        raise Failed(describe_error(error, place)) from None
    if reply is None:
        raise not_served(place)
    if revoke is not None and not reply["found"]:
        raise Failed(f"no link has the id {revoke!r}: see `agentos dashboard --links`", {"code": "not_found"})
    if as_json:
        print_json({"success": True, "links": reply["links"]})
    elif revoke is not None:
        click.echo(f"revoked {revoke}")
    else:
        print_links(reply["links"])


def print_links(links: Sequence[Mapping[str, Any]]) -> None:
    header = ["ID", "RIGHTS", "ENDS", "LAST USED", "BROWSER"]
    rows = [
        [
            one["id"],
            one["role"],
            "12h without use" if one["until"] is None else format_time(one["until"]),
            "not yet" if one["used"] is None else format_time(one["used"]),
            one["browser"] or "",
        ]
        for one in links
    ]
    print_table(rows, header, {"BROWSER"}, "no link is good, and no browser is logged in")


def not_served(place: Path) -> Failed:
    why = f"no kernel serves a dashboard with the state in {place}: start one with `agentos run --dashboard`"
    return Failed(f"{why}, or name its state directory with --state-dir", {"code": "unavailable"})
