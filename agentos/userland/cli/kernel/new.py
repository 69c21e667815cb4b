"""``agentos new``: a directory with an agent, its configuration, a test and a README, from a template."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from agentos.presets import BadPreset, list_presets, read_preset, user_directories
from agentos.userland.cli.common import Failed, project_directory

TEMPLATES = Path(__file__).parents[2] / "templates"
PLACEHOLDER = "my-agent"  # the agent's name in the templates
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)  # what an agent can be called
RESERVED, RESERVED_PREFIX = ("root", "spawned", "kernel", "operator", "guest"), "mcp."  # as in agentos.agents.spec
PRESET_FILE = """\
# {about}: {install}
# The offline model only repeats what it is told. For a real one, name its provider and model here, and put the key into
# the environment or into .env (ANTHROPIC_API_KEY=...).

[llm]
provider = "offline"
model = "offline"
openai_endpoint = true    # the program finds the kernel's model there, and no key

[[agents]]
name = "{name}"
framework = "{preset}"
command = {command}
restart = "temporary"     # once; "permanent" for one that serves
workspace = "keep"        # or a directory: {{ path = "...", mode = "overlay" }} leaves it as it is until you apply
llm = {{ budget = [{{ tokens = 500000, per = "1d" }}] }}
"""


def templates() -> list[str]:
    """The names of all templates."""
    return sorted(path.name for path in TEMPLATES.iterdir() if path.is_dir() and not path.name.startswith("_"))


@click.command()
@click.argument("directory", required=False, metavar="NAME", type=click.Path(path_type=Path))
@click.option("--template", type=click.Choice(templates()), default="echo", show_default=True, help="What it does.")
@click.option("--preset", is_flag=False, flag_value="", metavar="[PROGRAM]", help="Run this; alone: list them.")
def new(directory: Path | None, template: str, preset: str | None) -> None:
    """Make a directory NAME with an agent that runs at once.

    It has the agent's program, an agentos.toml, a test and a README. echo answers messages, thinker asks a model
    (offline, until there is a key), loop works on tasks by tools, pipeline is three agents in a row. With --preset it
    has an agentos.toml for a program of others, such as a coding agent.
    """
    if preset == "":
        show_presets()
        return
    if directory is None:
        raise click.UsageError("Missing argument 'NAME'.")
    name = directory.absolute().name
    if not NAME.fullmatch(name):
        raise Failed(f"NAME: expected letters, digits, '.', '_' and '-', not digits alone, got {name!r}")
    if name.lower() in RESERVED or name.lower().startswith(RESERVED_PREFIX):
        reserved = f"{', '.join(RESERVED)} or one that begins with {RESERVED_PREFIX}"
        raise Failed(f"NAME: expected another name than {reserved}: the kernel keeps these for itself, got {name!r}")
    try:
        files = dict(render(template, name)) if preset is None else {"agentos.toml": render_preset(preset, name)}
        write(directory, files)
    except OSError as error:
        raise Failed(f"{error.filename or directory}: {error.strerror}") from None
    source = f"template {template}" if preset is None else f"preset {preset}"
    click.echo(f"{directory} made from {source}:")
    for file in files:
        click.echo(f"  {directory / file}")
    enter = f"cd {shlex.quote(str(directory))}"
    more = " README.md says more, and how to test it." if preset is None else " Its comments say what to change."
    click.echo(f"Next: `{enter}`, then `agentos run`.{more}")


def render(template: str, name: str) -> Iterator[tuple[str, str]]:
    """Names and contents of a template's files, for an agent of that name."""
    for path in sorted((TEMPLATES / template).iterdir()):
        if path.is_file():
            yield path.name, path.read_text().replace(PLACEHOLDER, name)


def show_presets() -> None:
    """Print the programs that have a preset, with how to get each."""
    directories = user_directories(project_directory())
    for name in list_presets(directories):
        preset = read_preset(name, directories)
        click.echo(f"{name:<16}{preset.about}{f': {preset.install}' if preset.install else ''}")


def render_preset(preset_name: str, name: str) -> str:
    """An agentos.toml that runs the program of a preset. Raises ``click.UsageError``."""
    try:
        preset = read_preset(preset_name, user_directories(project_directory()))
    except BadPreset as error:
        raise click.UsageError(f"--preset: {error}") from None
    command = [word.replace("{task}", "Say hello") for word in preset.task] or ["true"]
    return PRESET_FILE.format(
        about=preset.about,
        install=preset.install or "nothing to install",
        name=name,
        preset=preset_name,
        command=json.dumps(command, ensure_ascii=False),
    )


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files into a directory that is made, or is empty; raises ``Failed`` if it has files.

    Where one can't be written the directory is empty again. Raises ``OSError``.
    """
    directory.mkdir(exist_ok=True)
    if any(directory.iterdir()):
        raise Failed(f"{directory} isn't empty, and is left as it is: name another directory")
    try:
        for name, text in files.items():
            (directory / name).write_text(text)
    except OSError:
        for name in files:
            (directory / name).unlink(missing_ok=True)
        raise
