"""``agentos recordings``: lists, shows, compares, exports and removes recordings, from their files.

The kernel isn't asked.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec.structs import asdict

from agentos.recordings.format import SUFFIX
from agentos.recordings.kept import remove, scan
from agentos.recordings.masks import BUILT_IN, BadMask
from agentos.recordings.reader import BadRecording, Recording, read_recording
from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.columns import table_width
from agentos.userland.cli.common import Failed, json_option, plural, print_json, print_table, printable
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option
from agentos.userland.cli.times import format_time
from agentos.userland.cli.top.trace_table import Scale, format_offset, total_lines, waterfall
from agentos.userland.recordings.calls import describe_end

from .calls import trace_calls

HEADER = ["RECORDING", "BEGAN", "LIVES", "SIZE", "END"]
SHOWN_CALLS = 100


@click.group()
def recordings() -> None:
    """List, show, compare, export and remove recordings of agents."""


@recordings.command()
@state_dir_option()
@json_option
def ls(state_dir: Path | None, as_json: bool) -> None:
    """List the recordings, the oldest first."""
    with readable():
        found = scan(place(state_dir)) if place(state_dir).exists() else []
    listed = [
        {"name": one.manifest.name, "bytes": one.size, "lives": [*map(asdict, one.manifest.lives)]} for one in found
    ]
    rows = [
        [
            each.manifest.name,
            format_time(each.manifest.began),
            ", ".join(life.life for life in each.manifest.lives) or "-",
            format_bytes(each.size),
            describe_end(each.manifest),
        ]
        for each in found
    ]
    print_table(rows, HEADER, (), "no recordings", listed, as_json)


@recordings.command()
@click.argument("name", metavar="REC")
@click.option("--life", "wanted", metavar="LIFE", help="Of several, this one, as NAME/1; the last without it.")
@click.option("-n", "--tail", "most", type=click.IntRange(1), default=SHOWN_CALLS, show_default=True,
              help="How many calls, the last ones.")  # fmt: skip
@click.option("--contents", is_flag=True, help="Also what it asked the model, and the answers.")
@state_dir_option()
@json_option
def show(name: str, wanted: str | None, most: int, contents: bool, state_dir: Path | None, as_json: bool) -> None:
    """Show a recorded life as a waterfall of calls."""
    show_recording(open_recording(name, state_dir), wanted, most, contents, as_json)


@recordings.command()
@click.argument("names", nargs=-1, required=True, metavar="REC...")
@state_dir_option()
def rm(names: tuple[str, ...], state_dir: Path | None) -> None:
    """Remove recordings; one that goes on ends."""
    for name in names:
        found = open_recording(name, state_dir)
        remove(found.path)
        if found.path.exists():
            raise Failed(f"{found.path}: can't be removed, or has other files in it")
        click.echo(printable(f"{name} is removed"))


@recordings.command()
@click.argument("name", metavar="REC")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--redact", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="LIST",
              help="Replace what this file lists: a text or a /pattern/ on each line.")  # fmt: skip
@click.option("--without", multiple=True, type=click.Choice(["files", "texts"]),
              help="Leave out what commands changed, or all texts, files too. Repeatable.")  # fmt: skip
@state_dir_option()
@json_option
def export(
    name: str, file: Path, redact: Path | None, without: tuple[str, ...], state_dir: Path | None, as_json: bool
) -> None:
    """Write a recording to a file for others, such as a bug report.

    FILE is a tar with the directory NAME.recording, which `recordings show`, `trace` and `replay` take. What lives
    began with isn't in it. Read what it has before you give it away: a secret that isn't listed is still there.
    """
    from .export import export_recording

    export_recording(open_recording(name, state_dir), file, redact, without, as_json)


@recordings.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@state_dir_option()
@json_option
def diff(first: str, second: str, state_dir: Path | None, as_json: bool) -> None:
    """Compare two recorded lives, such as a failed one and its fork.

    A and B are recordings, or a life of one, as coder-2:helper/1; its last life without that. Shows the first call that
    differs, with its words, and the calls that only one has. The exit status is 0 if none differs, else 1.
    """
    from .diff import show_diff

    sys.exit(show_diff(first, second, state_dir, as_json))


def place(state_dir: Path | None) -> Path:
    return (state_dir or find_state_dir()).absolute() / "recordings"


@contextmanager
def readable() -> Iterator[None]:
    """An error ends the command with one line."""
    try:
        yield
    except (BadMask, BadRecording) as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from None


def find_recording(name: str, state_dir: Path | None) -> Recording | None:
    """The recording with this name, or in this directory ``….recording``; None if there is none."""
    path = Path(name) if name.endswith(SUFFIX) else place(state_dir) / f"{name}{SUFFIX}"
    if "/" in name and not name.endswith(SUFFIX):
        return None
    with readable():
        return read_recording(path) if path.exists() else None


def open_recording(name: str, state_dir: Path | None) -> Recording:
    """As :func:`find_recording`; raises :class:`Failed` if there is none."""
    found = find_recording(name, state_dir)
    if found is None:
        raise Failed(f"there is no recording {name!r}; `agentos recordings ls` lists them")
    return found


def show_recording(recording: Recording, wanted: str | None, most: int, contents: bool, as_json: bool) -> None:
    """Print a life of a recording."""
    manifest = recording.manifest
    lives = [life for life in manifest.lives if wanted in (None, life.life)]
    if not lives:
        which = f"no life {wanted}" if wanted is not None else "no life"
        raise Failed(f"{manifest.name} has {which}; it has {', '.join(life.life for life in manifest.lives) or 'none'}")
    life = lives[-1]
    with readable():
        found = trace_calls(life, recording.calls(), most)
    calls = found.in_order()
    if as_json:
        shown = [{**call.as_json(), **({"contents": call.kept} if call.kept and contents else {})} for call in calls]
        described = [*map(asdict, manifest.lives)]
        masks = {"built_in": BUILT_IN, "own": manifest.masks}
        told = {"name": manifest.name, "lives": described, "life": life.life, "masks": masks, "lacks": manifest.lacks}
        print_json({**told, "calls": shown})
        return
    lasted = f", {format_offset(life.ended - life.began)}" if life.ended is not None else ""
    end = life.exit or "no end is recorded"
    click.echo(printable(f"{manifest.name}: {life.life} from {format_time(life.began)}{lasted}: {end}"))
    if manifest.lacks:
        click.echo(printable(f"was given away without {', '.join(manifest.lacks)}"))
    if (obstacle := manifest.find_obstacle(life)) is not None:
        click.echo(printable(f"can't be replayed: {obstacle}"))
    if life.replayable and life.no_files is not None:
        click.echo(printable(f"can be replayed without its files: {life.no_files}"))
    if life.lost is not None:
        click.echo(printable(f"what its commands changed isn't kept: {life.lost}"))
    if life.resumed is not None:
        click.echo(printable(f"went on after a crash with {plural(life.answers, 'answer')} of {life.resumed}"))
    own = f"; its own: {' '.join(map(repr, manifest.masks))}" if manifest.masks else ""
    click.echo(printable(f"masks of a replay: {', '.join(BUILT_IN)}{own}"))
    end_at = max([0.0, *(call.start + (call.duration or 0.0) for call in calls)])
    scale = Scale(calls[0].start if found.left_out else 0.0, end_at)
    width = table_width()
    for line in (*waterfall(calls, scale, width, contents), *total_lines(calls, width)):
        click.echo(line)
    if found.left_out:
        click.echo(f"{plural(found.left_out, 'earlier call')} left out: -n {found.left_out + len(calls)} shows all")
