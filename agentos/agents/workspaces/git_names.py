"""What git on the host obeys in a workspace: names that its configuration leads to, found when a workspace is opened.

The configuration of the repository, of its linked worktrees and submodules, of the kernel's user and the directory's
owner is read, with all that it includes, whatever the condition. Git parses the text, from its standard input: no
repository is entered, nothing of a configuration is run, and no file is opened by anything that could wait.

What a program that is named so runs in turn isn't found.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from agentos.protected_names import IN_GIT
from agentos.services.files.foreign_files import read_regular

from .git_exclude import find_repository, read_first_line
from .obeyed_names import list_held

MAX_BYTES = 4 << 20  # of all configuration files
MAX_CACHED = 16 << 10  # bytes of a configuration file whose entries are kept
MAX_FILES = 200  # configuration files that are read
MAX_NAMES = 300  # names in a workspace
MAX_DEPTH = 6  # directories below .git/modules: a submodule's name may contain slashes
MAX_DIRECTORIES = 1000  # in .git/modules and .git/worktrees
MAX_WORK = 1_000_000  # paths that are tried: an agent's repository may name any number
HOLDING = 100  # paths that take as long to try as one to hold
_SECONDS = 10  # for git to parse a file
_RUN = re.compile(
    r"""(core\.(fsmonitor|sshcommand|pager|editor|askpass|attributesfile|gitproxy|alternaterefscommand)
    | (filter|diff|merge|difftool|mergetool|browser|man|trailer|hook|remote|gpg|credential|guitool|tar)\.(.*\.)?
      (clean|smudge|process|command|textconv|driver|cmd|path|helper|program|defaultkeycommand|uploadpack|receivepack)
    | lfs\.(customtransfer|extension)\..*\.(path|clean|smudge) | (annex|remote\..*\.annex).*
    | imap\.tunnel | instaweb\.(httpd|modulepath) | svn\.authorsprog
    | diff\.external | sequence\.editor | interactive\.difffilter | pager\..* | uploadpack\.packobjectshook
    | sendemail\.(.*\.)?(tocmd|cccmd|headercmd|smtpserver|sendmailcmd))""",
    re.VERBOSE | re.DOTALL,
)
_AFTER = {  # keys whose values are programs only behind these characters
    r"alias\..*": re.compile(r"!|.*-c\b", re.DOTALL),
    r"submodule\..*\.update": re.compile("!"),
    r"remote\..*\.(push)?url": re.compile("ext::"),
}
_DIRECTORIES = {
    "core.hookspath": "core.hooksPath",
    "init.templatedir": "init.templateDir",
    "gitflow.path.hooks": "gitflow.path.hooks",
}
_WORD = re.compile(r"[^\s'\"`;|&<>()$=,!]+")
_SUBSTITUTED = re.compile(r"\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}|\$\w+")
_PATH = re.compile(r"[\w.-]*/[\w./-]*")
_REPOSITORY: Mapping[str, str | None] = {name.removeprefix(".git/"): text for name, text in IN_GIT.items()}
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


class _Value(NamedTuple):
    key: str
    value: str
    home: str


def find_git_names(directory: str) -> GitNames:
    """The names in a directory that git obeys by a configuration. Blocks. Raises :class:`NotHeld`."""
    search = _Search(directory)
    search.look()
    if len(search.stubs) + len(search.existing) > MAX_NAMES:
        raise NotHeld(f"git's configuration leads to more than {MAX_NAMES} names in it: name a smaller directory")
    return GitNames(frozenset(search.existing), search.stubs)


def find_led(directory: str) -> Mapping[str, str]:
    """Why git obeys names in a directory, by these: all, by ``""``, where they can't be told. Blocks."""
    try:
        found = find_git_names(directory)
    except NotHeld as error:
        return {"": str(error)}
    return dict.fromkeys((*found.existing, *found.stubs), "git's configuration leads to it")


class _Search:
    """One search: the files to read, and what was found."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        self.stubs: dict[str, str | None] = {}
        self.existing: set[str] = set()
        self.waiting: list[_Source] = []
        self.seen: set[str] = set()
        self.values: list[_Value] = []  # that may name programs or directories of them
        self.size = self.work = 0
        found = find_repository(self.directory) or _find_linked(self.directory)
        if _is_repository(self.directory):
            found = (self.directory, self.directory)
        self.common = found[1] if found is not None else None
        self.tops = [found[0] if found is not None else self.directory, self.directory]  # where relative paths begin

    def look(self) -> None:
        homes = _homes(self.directory)
        for home in homes:
            self.waiting += [_Source(f"{home}/.gitconfig", home), _Source(f"{home}/.config/git/config", home)]
        self.waiting.append(_Source("/etc/gitconfig", homes[0]))
        if xdg := os.environ.get("XDG_CONFIG_HOME"):
            self.waiting.append(_Source(f"{xdg}/git/config", homes[0]))
        if self.common is not None:
            self._look_at_repository(self.common, homes[0])
        while self.waiting:
            source = self.waiting.pop()
            if (real := os.path.realpath(source.path)) not in self.seen and os.path.isfile(real):
                self.seen.add(real)
                self._read(source)
            if len(self.seen) > MAX_FILES:  # one that isn't read could name a program
                raise NotHeld(f"git's configuration is in more than {MAX_FILES} files, {source.path} is one of them")
        for value in self.values:
            self._hold_value(value)

    def _look_at_repository(self, common: str, home: str) -> None:
        """A repository, its linked worktrees and its submodules."""
        self._hold_repository(common, home)
        for tree in _directories(f"{common}/worktrees"):
            self._add(f"{tree}/commondir")
            self._add(f"{tree}/config.worktree", stub="")
            self.waiting.append(_Source(f"{tree}/config.worktree", home))
            if place := read_first_line(f"{tree}/gitdir"):
                self._hold_worktree(os.path.dirname(os.path.join(tree, place)), home)
        for module in _modules(f"{common}/modules"):
            self._hold_repository(module, home)
            for key, value in self._read_entries(f"{module}/config"):
                if key == "core.worktree":
                    self._hold_worktree(os.path.join(module, value), home)
        for key, value in self._read_entries(f"{self.tops[0]}/.gitmodules"):
            if key.startswith("submodule.") and key.endswith(".path"):
                self._hold_worktree(os.path.join(self.tops[0], value), home)

    def _hold_repository(self, git: str, home: str) -> None:
        """What git obeys in a repository; of the one at the top the names are known to ``IN_GIT``."""
        if git != f"{self.directory}/.git":
            for name, text in _REPOSITORY.items():
                self._add(f"{git}/{name}", stub=text)
        self._add_links(f"{git}/hooks")
        self.waiting += [_Source(f"{git}/{name}", home) for name in ("config", "config.worktree")]

    def _hold_worktree(self, top: str, home: str) -> None:
        """The ``.git`` of a linked worktree or a submodule: a file that leads to the repository, or this itself."""
        top = os.path.realpath(top)
        if not os.path.isdir(top) or top in self.tops or os.path.commonpath([top, self.directory]) != self.directory:
            return
        self.tops.append(top)
        if os.path.isdir(f"{top}/.git"):
            self._hold_repository(f"{top}/.git", home)
        else:
            self._add(f"{top}/.git")

    def _read(self, source: _Source) -> None:
        for key, value in self._read_entries(source.path):
            if key == "include.path" or (key.startswith("includeif.") and key.endswith(".path")):
                for place in {source.path, os.path.realpath(source.path)}:  # git takes the first of them
                    path = _absolute(value, os.path.dirname(place), source.home)
                    self.waiting.append(_Source(path, source.home))
                    self._add(path, stub="")
            elif value:
                self.values.append(_Value(key, value, source.home))

    def _read_entries(self, path: str) -> Entries:
        """The keys, in lower case but for subsections, and values of a configuration file; none if it can't be read."""
        try:
            text = read_regular(path, MAX_BYTES + 1)
        except (OSError, ValueError):
            return ()
        self.size += len(text)
        if self.size > MAX_BYTES:  # what isn't read could name a program
            raise NotHeld(f"git's configuration has more than {MAX_BYTES >> 20} MiB, {path} is a part of it")
        return _parse(text) if len(text) <= MAX_CACHED else _parse.__wrapped__(text)

    def _count(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise NotHeld("git's configuration names too many paths to look for: remove what an agent has added to it")

    def _hold_value(self, found: _Value) -> None:
        """Hold the directory of hooks, or the programs, that a value names, wherever git may be called."""
        if found.key in _DIRECTORIES:
            for top in dict.fromkeys(self.tops):
                path = _absolute(found.value, top, found.home)
                if os.path.realpath(path) == self.directory:
                    raise NotHeld(
                        f"git's {_DIRECTORIES[found.key]} is the directory itself: give hooks one of their own"
                    )
                self._add(path, stub=None)
                self._add_links(path)
            return
        is_program = _names_program(found.key, found.value)
        if not is_program and "/" not in found.value:
            return
        words = list(_find_words(found.value, found.home))
        paths = set(_named_by_path(found.value)) if is_program else set()
        for top in dict.fromkeys(self.tops):
            self._count(len(words))
            for word in words:
                path = _absolute(word, top, found.home)
                if is_program or ("/" in word and os.access(path, os.X_OK)):
                    self._add(path, stub="" if word in paths else "existing")

    def _add_links(self, hooks: str) -> None:
        """The files in the workspace to which symlinks in a directory of hooks lead."""
        try:
            entries = [entry.path for entry in os.scandir(hooks) if entry.is_symlink()]
        except OSError:
            return
        inside = os.path.join(os.path.relpath(os.path.realpath(hooks), self.directory), "")  # which is held as a whole
        for path in entries[:MAX_NAMES]:
            self._count(HOLDING)
            held = list_held(self.directory, path) if os.path.isfile(path) else ()
            self.existing.update(name for name in held if not name.startswith(inside))

    def _add(self, path: str, stub: str | None = "existing") -> None:
        """Protect a path if it is in the workspace: what exists, or a stub for what doesn't.

        Where the directory of an absent name is absent too, the first that is absent is held by a directory.
        """
        self._count(HOLDING)
        held = list_held(self.directory, path)
        real = os.path.realpath(path)
        if not held or real == self.directory:
            return
        if os.path.isfile(real) or (stub != "existing" and os.path.lexists(real) and not os.path.islink(real)):
            self.existing.update(name for name in held if name != ".git")
        elif stub != "existing" and not os.path.lexists(real):
            while not os.path.lexists(parent := os.path.dirname(real)):
                real, stub = parent, None
            if os.path.isdir(parent):
                self.stubs.setdefault(os.path.relpath(real, self.directory), stub)
            else:  # a file that the agent could replace by a directory
                self.existing.add(os.path.relpath(parent, self.directory))
            self.existing.update(held[:-1])


def _find_linked(directory: str) -> tuple[str, str] | None:
    """The top around a directory and its repository, where ``.git`` is a symlink to one."""
    for top in (directory, *map(str, Path(directory).parents)):
        if _is_repository(repository := os.path.realpath(f"{top}/.git")):
            return top, repository
    return None


def _is_repository(path: str) -> bool:
    return os.path.isfile(f"{path}/HEAD") and all(os.path.isdir(f"{path}/{name}") for name in ("objects", "refs"))


def _names_program(key: str, value: str) -> bool:
    """Whether the value of a key is a command, or the file of attributes."""
    for pattern, begin in _AFTER.items():
        if re.fullmatch(pattern, key, re.DOTALL):
            return begin.match(value) is not None
    return _RUN.fullmatch(key) is not None


def _find_words(value: str, home: str) -> Iterable[str]:
    """What may be a path in a command. What a shell would put in is taken for the directory that it is called in."""
    value = value.removeprefix("ext::")
    plain = re.sub(r"\$(HOME\b|\{HOME\})", lambda _: home, value)
    for _ in range(MAX_DEPTH):
        plain = _SUBSTITUTED.sub(".", plain)
    return dict.fromkeys([value, *_WORD.findall(value), *_WORD.findall(plain), *_split(plain), *_named_by_path(value)])


def _named_by_path(value: str) -> Iterator[str]:
    """The words that can only be paths of programs: the first one, and others that begin with ``./`` or ``../``."""
    for at, word in enumerate(_split(value.removeprefix("!").removeprefix("ext::"))):
        if _PATH.fullmatch(word) and (at == 0 or word.startswith(("./", "../"))):
            yield word


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # a quote that isn't closed
        return []


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
    path = path.removeprefix(":(optional)").replace("\0", "")
    path = home + path[1:] if path == "~" or path.startswith("~/") else os.path.expanduser(path)
    return os.path.join(base, path)


def _directories(path: str, most: int = MAX_DIRECTORIES) -> list[str]:
    """The directories in one. Raises :class:`NotHeld` if there are more: an agent may have made them."""
    try:
        with os.scandir(path) as entries:
            found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    if len(found) > most:
        raise NotHeld(f"{path} has more than {MAX_DIRECTORIES} directories: remove those that no submodule needs")
    return found


def _modules(path: str) -> Iterator[str]:
    """The repositories of submodules below a directory."""
    waiting, left = [(path, MAX_DEPTH)], MAX_DIRECTORIES
    while waiting:
        place, depth = waiting.pop()
        below = _directories(place, left)
        left -= len(below)
        for each in below:
            if is_module := os.path.isfile(f"{each}/HEAD"):
                yield each
            if depth:
                waiting.append((f"{each}/modules" if is_module else each, depth - 1))


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
