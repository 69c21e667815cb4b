"""API keys from the environment, or from the nearest trusted ``.env`` file."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen
from msgspec import Struct

VARIABLE_NAMES = (
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_MODEL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
)
ENV_FILE = ".env"
MAX_BYTES = 64 << 10  # of a .env file

_BLANK = re.compile(r"\s*(#.*)?")
_ASSIGNED = re.compile(r"\s*(?:export\s+)?(?P<name>[^\s=#'\"]+)\s*=(?P<value>.*)")
_VALUE = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|((?!["'])(?:[^#]|(?<!\s)#)*))\s*(?:#.*)?""")
_SENDABLE = re.compile(r"[!-~]+")  # what an HTTP header can hold


@frozen
class Variable:
    """``value`` may be a secret. ``file``: where it was found, ``None`` for the environment."""

    value: str = field(repr=False)
    file: str | None = None


class Variables(Struct, frozen=True):
    """The variables of ``VARIABLE_NAMES`` that are set; ``warnings`` name what was ignored, without its value."""

    found: Mapping[str, Variable]
    warnings: Sequence[str] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def get(self, name: str) -> str | None:
        return self.found[name].value if name in self.found else None


def read_variables(environment: Mapping[str, str], directory: Path) -> Variables:
    """Read the variables from the environment and the nearest ``.env`` in ``directory`` or above. Reads files."""
    warnings: list[str] = []
    found = _read_nearest_file(directory, warnings)
    for name in VARIABLE_NAMES:
        if value := environment.get(name, "").strip():
            found[name] = Variable(value)
    for name, variable in list(found.items()):
        if not _SENDABLE.fullmatch(variable.value):
            del found[name]
            source = variable.file or "the environment"
            warnings.append(f"{name} in {source}: not usable in an HTTP header, ignored")
    # A process that can write to the working directory, perhaps an agent, must not receive the environment's key.
    url, key = found.get("OPENAI_BASE_URL"), found.get("OPENAI_API_KEY")
    if url is not None and url.file is not None and key is not None and key.file is None:
        del found["OPENAI_BASE_URL"]
        warnings.append(f"OPENAI_BASE_URL in {url.file}: ignored, because OPENAI_API_KEY is in the environment")
    return Variables(found, tuple(warnings))


def _read_nearest_file(directory: Path, warnings: list[str]) -> dict[str, Variable]:
    for parent in (directory, *directory.parents):
        path = str(parent / ENV_FILE)
        try:
            text = _read_file(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            warnings.append(f"{path}: {why}, ignored")
            continue
        return {name: Variable(value, path) for name, value in _parse_assignments(path, text, warnings) if value}
    return {}


def _read_file(path: str) -> str:
    """Read a ``.env`` file; ``ValueError`` if another user may have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would block
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a file")
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError(f"belongs to another user (uid {status.st_uid})")
        if status.st_mode & stat.S_IWOTH:
            raise ValueError("writable by all users")
        read = file.read(MAX_BYTES + 1)
    if len(read) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 10} KiB")
    return read.decode(errors="replace").removeprefix("\ufeff")


def _parse_assignments(path: str, text: str, warnings: list[str]) -> Iterator[tuple[str, str]]:
    """The variables of ``VARIABLE_NAMES`` in a ``.env`` file."""
    unparsed: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if _BLANK.fullmatch(line):
            continue
        assigned = _ASSIGNED.fullmatch(line.rstrip())
        value = _VALUE.fullmatch(assigned["value"]) if assigned else None
        if assigned is None or value is None:
            unparsed.append(number)
        elif assigned["name"] in VARIABLE_NAMES:
            yield assigned["name"], next(group for group in value.groups() if group is not None).strip()
    if unparsed:
        which = (
            f"line {unparsed[0]} is" if len(unparsed) == 1 else f"line {unparsed[0]} and {len(unparsed) - 1} more are"
        )
        warnings.append(f"{path}: {which} not NAME=value, ignored")
