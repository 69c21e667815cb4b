"""Configuration file loader: returns the whole configuration, or all mistakes with line and path."""

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

from agentos.agents.spec import GroupSpec
from agentos.config.schema import KernelSettings, NotifyTable, RecordingTable, StorageTable
from agentos.llm.settings import LLMSettings
from agentos.mcp.settings import ServerSettings
from agentos.permissions.approvals.approvals import ApprovalSettings
from agentos.permissions.rule import PermissionSet
from agentos.services.files.foreign_files import read_owned
from agentos.services.http.settings import HttpSettings
from agentos.services.logs.log import LogSettings
from agentos.telemetry.settings import MetricsSettings, OtelSettings
from agentos_sdk.encoding.codec import is_deeper
from agentos_sdk.encoding.codec import path as dotted

from .build import ROOT, Builder
from .fixes import fix_syntax, fix_value
from .tables.dashboard import DashboardSettings
from .toml_lines import Keys, find_lines

MAX_BYTES = 4 << 20
MAX_DEPTH = 110  # nesting of tables and arrays: 50 supervisors, and an agent below them


@frozen
class ConfigMistake:
    """One mistake in a file; ``line`` and ``path`` are given if known.

    ``agent``: the agent, or the MCP server as ``mcp.NAME``, that alone can't start, since the host lacks something.
    """

    file: str
    message: str
    line: int | None = None
    path: str = ""
    agent: str | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.path, self.message) if part)


@frozen
class Config:
    """The configuration; every path in it is absolute. ``file`` is ``None`` if there was none.

    ``permissions`` are the permission sets by name, ``mcp`` the MCP servers by name. ``faults`` are what single agents
    name and this host lacks: only these agents can't start. ``owners`` are the uids of the file, and of its symlink.
    """

    kernel: KernelSettings
    llm: LLMSettings
    root: GroupSpec
    directory: Path
    file: Path | None = None
    permissions: Mapping[str, PermissionSet] = field(factory=dict)
    logs: LogSettings = LogSettings()
    http: HttpSettings = HttpSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    notify: NotifyTable = NotifyTable()
    dashboard: DashboardSettings | None = None
    metrics: MetricsSettings = MetricsSettings()
    otel: OtelSettings = OtelSettings()
    mcp: Mapping[str, ServerSettings] = field(factory=dict)
    faults: Sequence[ConfigMistake] = ()
    storage: StorageTable = StorageTable()
    recording: RecordingTable = RecordingTable()
    owners: frozenset[int] = frozenset()

    @property
    def settled(self) -> Sequence[str | None]:
        """Files that a running kernel with this configuration doesn't read again once it has used them."""
        return self.http.ca_file, self.http.cassette, self.llm.offline.rules

    @classmethod
    def without_file(cls, directory: Path) -> "Config":
        """A configuration with all defaults and no agents."""
        return cls(KernelSettings(), LLMSettings(), GroupSpec(ROOT), directory.absolute())


class ConfigError(Exception):
    """An unusable file; ``mistakes`` are all that were found, in the order of their lines."""

    def __init__(self, mistakes: Sequence[ConfigMistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(str(mistake) for mistake in self.mistakes)


def load(path: str | Path, running: Config | None = None) -> Config:
    """Load a configuration file; raises ``ConfigError``.

    With the configuration of a kernel that is ``running`` the files aren't read that it has read before agents began.
    """
    name, file = str(path), Path(path).absolute()
    text, owners = _read_text(name)
    data = _parse_toml(name, text)
    if is_deeper(data, MAX_DEPTH):
        raise ConfigError([ConfigMistake(name, f"nested deeper than {MAX_DEPTH} tables and arrays")])
    builder = Builder(file.parent, running.settled if running is not None else ())
    kernel, llm, permissions, root = builder.build(data)
    of_file = [(keys, fix_value(keys, message), None) for keys, message in builder.mistakes]
    if of_file:
        raise ConfigError(_locate_mistakes(name, text, [*of_file, *builder.faults]))
    located = _locate_mistakes(name, text, builder.faults)
    told = (builder.approvals, builder.notify)
    parts = (builder.logs, builder.http, *told, builder.dashboard, builder.metrics, builder.otel)
    bounds = (builder.storage, builder.recording)
    return Config(kernel, llm, root, file.parent, file, permissions, *parts, builder.mcp, located, *bounds, owners)


def _read_text(name: str) -> tuple[str, frozenset[int]]:
    try:
        read, owner = read_owned(name, MAX_BYTES + 1)
        owners = frozenset({owner, os.lstat(name).st_uid})
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError([ConfigMistake(name, f"can't be read: {why[0].lower() + why[1:]}")]) from None
    if len(read) > MAX_BYTES:
        raise ConfigError([ConfigMistake(name, f"larger than {MAX_BYTES >> 20} MiB")])
    try:
        return read.decode("utf-8-sig"), owners  # editors of other systems begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError([ConfigMistake(name, "not UTF-8", read.count(b"\n", 0, error.start) + 1)]) from None


_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def _parse_toml(name: str, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        sentence = str(error)
        if not (found := _AT.search(sentence)):
            raise ConfigError([ConfigMistake(name, f"not TOML: {sentence}")]) from None
        line = int(found["line"] or len(text.splitlines()) or 1)
        column = f" at column {found['column']}" if found["column"] else " at the end of the file"
        what = sentence[: found.start()]
        what = what[0].lower() + what[1:]
        fix = fix_syntax("".join(text.splitlines()[line - 1 : line]), what)
        raise ConfigError([ConfigMistake(name, f"not TOML: {what}{column}{fix}", line)]) from None
    except ValueError:  # of a number with more digits than Python reads
        most = sys.get_int_max_str_digits()
        numbers = re.finditer(r"[0-9_]+", text)
        at = next((text.count("\n", 0, number.start()) + 1 for number in numbers if len(number[0]) > most), None)
        raise ConfigError([ConfigMistake(name, f"a number of more than {most} digits", at)]) from None
    except RecursionError:
        raise ConfigError([ConfigMistake(name, f"nested deeper than {MAX_DEPTH} tables and arrays")]) from None


def _locate_mistakes(name: str, text: str, found: Sequence[tuple[Keys, str, str | None]]) -> list[ConfigMistake]:
    lines = find_lines(text, {keys for keys, _, _ in found})
    located = [ConfigMistake(name, message, lines.get(keys), dotted(keys), agent) for keys, message, agent in found]
    return sorted(located, key=lambda mistake: mistake.line or 0)
