"""``agentos demo``: runs a demo; each starts a kernel of its own and stops it."""

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

import agentos
from agentos.userland.cli.common import Failed, print_table
from agentos_sdk.clients.suggestions import suggest_name

PACKAGE = Path(agentos.__file__).parent
PLACES = (PACKAGE / "shipped", PACKAGE.parent)  # of the directory demos: in a wheel, in a clone


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False, shell_complete=lambda ctx, param, word: matching_demos(word))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(name: str | None, arguments: tuple[str, ...]) -> None:
    """Run the demo NAME with a kernel of its own, or list all.

    None needs the network or a key. ARGUMENTS are the demo's own: `agentos demo security --help` says which it has.
    """
    place = find_demos()
    known = demos(place)
    if name is None:
        print_table([[title, text] for title, text in known.items()], ["NAME", "WHAT IT SHOWS"])
        return
    if name not in known:
        raise Failed(f"`agentos demo` lists the demos: there is no {name!r}{suggest_name(name, known)}")
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    # -P: a directory demos in the current one is another.
    command = [sys.executable, "-P", "-m", f"demos.{name}", *arguments]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


def find_demos() -> Path:
    """The directory that contains the package demos; raises ``Failed`` if this installation has none."""
    for place in PLACES:
        if (place / "demos" / "stage.py").exists():
            return place
    raise Failed(f"this installation has no demos: neither {PLACES[0]}/demos nor {PLACES[1]}/demos is there")


def demos(place: Path) -> Mapping[str, str]:
    """The name of each demo with what it shows: the first line of its docstring, after the command.

    If it ``NEEDS`` an extra that isn't installed, that is said.
    """
    found = {}
    for path in sorted(place.glob("demos/*/__main__.py")):
        module = ast.parse(path.read_text())
        text = (ast.get_docstring(module) or "").partition("\n")[0].partition("``: ")[2].removesuffix(".")
        for name in needed_extras(module):
            if not is_installed(name):
                text += f" (not here: it needs pip install '.[{name}]')"
        found[path.parent.name] = text
    return found


def needed_extras(module: ast.Module) -> list[str]:
    """The values of ``NEEDS = "name"`` in a module."""
    return [
        node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NEEDS"
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def is_installed(package: str) -> bool:
    """Whether this interpreter can import a package."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # importing it is prevented
        return False


def matching_demos(beginning: str) -> list[str]:
    """The names of demos that begin so."""
    return [name for name in demos(find_demos()) if name.startswith(beginning)]
