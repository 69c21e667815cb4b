"""What git on the host obeys in a workspace: names that its configuration leads to, found when a workspace is opened.

The configuration of the repository, of its linked worktrees and submodules, of the kernel's user and the directory's
owner is read, with all that it includes, whatever the condition. Git parses the text, from its standard input: no
repository is entered, nothing of a configuration is run, and no file is opened by anything that could wait.

What a program that is named so runs in turn isn't found.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from agentos.foreign_files import read_regular

from .git_exclude import find_repository
from .obeyed_names import list_held

MAX_BYTES = 1 << 20  # of a configuration file
MAX_FILES = 100  # configuration files that are read
MAX_NAMES = 200  # names in a workspace
MAX_DEPTH = 6  # directories below .git/modules: a submodule's name may contain slashes
_SECONDS = 10  # for git to parse a file
_RUN = re.compile(
    r"""(core\.(fsmonitor|sshcommand|pager|editor|askpass|attributesfile|gitproxy|alternaterefscommand)
    | (filter|diff|merge|difftool|mergetool|browser|man|trailer|hook|remote|gpg|credential|guitool|tar)\.(.*\.)?
      (clean|smudge|process|command|textconv|driver|cmd|path|helper|program|defaultkeycommand|uploadpack|receivepack)
    | diff\.external | sequence\.editor | interactive\.difffilter | pager\..* | uploadpack\.packobjectshook
    | sendemail\.(.*\.)?(tocmd|cccmd|headercmd|smtpserver|sendmailcmd) | init\.templatedir | alias\..*)""",
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[^\s'\"`;|&<>()$=,!]+")
Entries = tuple[tuple[str, str], ...]


class NotHeld(Exception):
    """What git obeys can't be protected; the text says why."""


class GitNames(NamedTuple):
    """Names relative to a workspace that git obeys."""

    existing: frozenset[str] = frozenset()
    stubs: Mapping[str, str | None] = MappingProxyType({})  # absent names: the text of a stub, None for a directory


class _Source(NamedTuple):
    path: str
    home: str


def find_git_names(directory: str) -> GitNames:
    """The names in a directory that git obeys by a configuration. Blocks. Raises :class:`NotHeld`."""
    search = _Search(directory)
    search.look()
    if len(search.stubs) + len(search.existing) > MAX_NAMES:
        raise NotHeld(f"git's configuration leads to more than {MAX_NAMES} names in it: name a smaller directory")
    return GitNames(frozenset(search.existing), search.stubs)


class _Search:
    """One search: the files to read, and what was found."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        self.stubs: dict[str, str | None] = {}
        self.existing: set[str] = set()
        self.waiting: list[_Source] = []
        self.seen: set[str] = set()
        found = find_repository(self.directory)
        self.top = found[0] if found is not None else self.directory
        self.common = found[1] if found is not None else None

    def look(self) -> None:
        homes = _homes(self.directory)
        for home in homes:
            self.waiting += [_Source(f"{home}/.gitconfig", home), _Source(f"{home}/.config/git/config", home)]
        self.waiting.append(_Source("/etc/gitconfig", homes[0]))
        if xdg := os.environ.get("XDG_CONFIG_HOME"):
            self.waiting.append(_Source(f"{xdg}/git/config", homes[0]))
        if self.common is not None:
            self._look_at_repository(self.common, homes[0])
            self._add_links(f"{self.common}/hooks")
        while self.waiting and len(self.seen) < MAX_FILES:
            source = self.waiting.pop()
            if (real := os.path.realpath(source.path)) not in self.seen:
                self.seen.add(real)
                self._read(source)

    def _look_at_repository(self, common: str, home: str) -> None:
        """The configuration of a repository, of its worktrees and its submodules."""
        self.waiting += [_Source(f"{common}/{name}", home) for name in ("config", "config.worktree")]
        for name in _directories(f"{common}/worktrees"):
            self._add(f"{common}/worktrees/{name}/commondir")
            self._add(f"{common}/worktrees/{name}/config.worktree", stub="")
            self.waiting.append(_Source(f"{common}/worktrees/{name}/config.worktree", home))
        for module in _modules(f"{common}/modules", MAX_DEPTH):
            for name, text in (("config", ""), ("config.worktree", ""), ("commondir", ".\n"), ("hooks", None)):
                self._add(f"{module}/{name}", stub=text)
            self._add_links(f"{module}/hooks")
            self.waiting.append(_Source(f"{module}/config", home))
        for key, value in _read_entries(f"{self.top}/.gitmodules"):
            if key.startswith("submodule.") and key.endswith(".path"):
                self._add(os.path.join(self.top, value, ".git"))  # a file that says where the repository is

    def _read(self, source: _Source) -> None:
        for key, value in _read_entries(source.path):
            if key == "include.path" or (key.startswith("includeif.") and key.endswith(".path")):
                path = _absolute(value, os.path.dirname(os.path.realpath(source.path)), source.home)
                self.waiting.append(_Source(path, source.home))
                self._add(path, stub="")
            elif key == "core.hookspath":
                for top in {self.top, self.directory}:
                    path = _absolute(value, top, source.home)
                    if value and os.path.realpath(path) == self.directory:
                        raise NotHeld("git's core.hooksPath is the directory itself: give hooks one of their own")
                    self._add(path, stub=None)
                    self._add_links(path)
            elif _RUN.fullmatch(key) and (not key.startswith("alias.") or value.startswith("!")):
                for word in (value, *_WORD.findall(value)):
                    self._add(_absolute(word, self.top, source.home))

    def _add_links(self, hooks: str) -> None:
        """The files in the workspace to which symlinks in a directory of hooks lead."""
        try:
            entries = [entry.path for entry in os.scandir(hooks) if entry.is_symlink()]
        except OSError:
            return
        inside = os.path.join(os.path.relpath(os.path.realpath(hooks), self.directory), "")  # which is held as a whole
        for path in entries[:MAX_NAMES]:
            held = list_held(self.directory, path) if os.path.isfile(path) else ()
            self.existing.update(name for name in held if not name.startswith(inside))

    def _add(self, path: str, stub: str | None = "existing") -> None:
        """Protect a path if it is in the workspace: a file that exists, or a stub for one that doesn't."""
        held = list_held(self.directory, path)
        real = os.path.realpath(path)
        if os.path.isfile(real) or (os.path.isdir(real) and stub is None):
            self.existing.update(name for name in held if name != ".git")
        elif stub != "existing" and held and not os.path.lexists(real) and os.path.isdir(os.path.dirname(real)):
            self.stubs[held[-1]] = stub
            self.existing.update(held[:-1])


def _homes(directory: str) -> list[str]:
    """The home directories of the kernel's user and of the directory's owner."""
    found = [os.path.expanduser("~")]
    for uid in (os.geteuid(), os.stat(directory).st_uid):
        try:
            found.append(pwd.getpwuid(uid).pw_dir)
        except KeyError:
            continue
    return list(dict.fromkeys(found))


def _absolute(path: str, base: str, home: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.join(base, path.replace("\0", ""))


def _directories(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)][:MAX_NAMES]
    except OSError:
        return []


def _modules(path: str, depth: int) -> Iterator[str]:
    """The repositories of submodules below a directory."""
    for name in _directories(path):
        below = os.path.join(path, name)
        if os.path.isfile(f"{below}/HEAD"):
            yield below
            yield from _modules(f"{below}/modules", depth - 1) if depth else ()
        elif depth:
            yield from _modules(below, depth - 1)


def _read_entries(path: str) -> Entries:
    """The keys, in lower case but for subsections, and values of a configuration file; none if it can't be read."""
    try:
        text = read_regular(path, MAX_BYTES)
    except (OSError, ValueError):
        return ()
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: bytes) -> Entries:
    """Have git parse the text of a configuration file. What is behind a mistake is lost, as git itself stops there."""
    git = shutil.which("git")
    if git is None or not text.strip():
        return ()
    argv = [git, "config", "--file", "-", "--no-includes", "--list", "-z"]
    env = {"PATH": os.defpath, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/"}
    try:
        done = subprocess.run(
            argv,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    pairs = (entry.partition("\n") for entry in os.fsdecode(done.stdout).split("\0") if entry)
    return tuple([(key, value) for key, _, value in pairs])
