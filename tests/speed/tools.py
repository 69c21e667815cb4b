"""What a measurement needs compiled: its C programs, and the Python modules that it measures."""

import compileall
import shutil
import subprocess
from pathlib import Path

from attrs import frozen

from tests.speed.processes import ROOT

HERE = Path(__file__).parent
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
SOURCES = {
    "floor": ("floor.c",),
    "load": ("load.c", "conns.c", "heavy.c", "tally.c", "wire.c"),
    "born": ("born.c",),
}


PACKAGES = (ROOT / "agentos", ROOT / "sdk" / "agentos_sdk", ROOT / "supervisors")


class NoCompilerError(Exception):
    """There is no ``cc`` on the path; the message says what to do."""


@frozen
class Tools:
    """Where the compiled programs are."""

    floor: Path
    load: Path
    born: Path


def compile_tools(into: Path) -> Tools:
    """Raises ``NoCompilerError``, or ``CalledProcessError`` where the sources do not compile."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompilerError("No C compiler: the load and the floor are C programs; install one that is called cc.")
    for name, sources in SOURCES.items():
        subprocess.run(
            [compiler, *FLAGS, "-o", into / name, *(HERE / "floor" / source for source in sources)], check=True
        )
    return Tools(**{name: into / name for name in SOURCES})


def compile_modules() -> None:
    """Compile the modules that have changed, as pip does when it installs them, and for the same Python.

    Otherwise each start of a kernel and of an agent would where ``PYTHONDONTWRITEBYTECODE`` is set, as it is in jails.
    """
    for package in PACKAGES:
        compileall.compile_dir(package, quiet=1)
