"""``agentos new``: a directory with an agent, its configuration, a test and a README, from a template."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from agentos.userland.cli.common import Failed

TEMPLATES = Path(__file__).parents[2] / "templates"
PLACEHOLDER = "my-agent"  # the agent's name in the templates
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)  # what an agent can be called
RESERVED, RESERVED_PREFIX = ("root", "spawned", "kernel", "operator", "guest"), "mcp."  # as in agentos.agents.spec


def templates() -> list[str]:
    """The names of all templates."""
    return sorted(path.name for path in TEMPLATES.iterdir() if path.is_dir() and not path.name.startswith("_"))


@click.command()
@click.argument("directory", metavar="NAME", type=click.Path(path_type=Path))
@click.option("--template", type=click.Choice(templates()), default="echo", show_default=True, help="What it does.")
def new(directory: Path, template: str) -> None:
    """Make a directory NAME with an agent that runs at once.

    It has the agent's program, an agentos.toml, a test and a README. echo answers messages, thinker asks a model
    (offline, until there is a key), loop works on tasks by tools, pipeline is three agents in a row.
    """
    name = directory.absolute().name
    if not NAME.fullmatch(name):
        raise Failed(f"NAME: expected letters, digits, '.', '_' and '-', not digits alone, got {name!r}")
    if name.lower() in RESERVED or name.lower().startswith(RESERVED_PREFIX):
        reserved = f"{', '.join(RESERVED)} or one that begins with {RESERVED_PREFIX}"
        raise Failed(f"NAME: expected another name than {reserved}: the kernel keeps these for itself, got {name!r}")
    try:
        files = dict(render(template, name))
        write(directory, files)
    except OSError as error:
        raise Failed(f"{error.filename or directory}: {error.strerror}") from None
    click.echo(f"{directory} made from template {template}:")
    for file in files:
        click.echo(f"  {directory / file}")
    enter = f"cd {shlex.quote(str(directory))}"
    click.echo(f"Next: `{enter}`, then `agentos run`. README.md says more, and how to test it.")


def render(template: str, name: str) -> Iterator[tuple[str, str]]:
    """Names and contents of a template's files, for an agent of that name."""
    for path in sorted((TEMPLATES / template).iterdir()):
        if path.is_file():
            yield path.name, path.read_text().replace(PLACEHOLDER, name)


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files into a directory that is made, or is empty; raises ``Failed`` if it has files."""
    directory.mkdir(exist_ok=True)
    if any(directory.iterdir()):
        raise Failed(f"{directory} isn't empty, and is left as it is: name another directory")
    for name, text in files.items():
        (directory / name).write_text(text)
