"""The files that a build copies: of its directory or of another stage, by patterns, with a digest of what they are.

No link is followed out of the directory, and none at all while a file is opened. Devices, FIFOs and sockets are refused
by name. Everything blocks.
"""

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from agentos.images.errors import BadArchive
from agentos.images.owners import Owners
from agentos.images.unpack import Amount, Bounds
from agentos.services.snapshots import beneath, layers
from agentos.services.snapshots.layers import Digests

from . import trees

MAX_IGNORE = 1 << 20  # bytes of .dockerignore
TICK = 20_000_000  # nanoseconds; Linux's clock of files may stand still as long
MAX_RULES = 1_000  # of them, which are tried on each path
_WILD = re.compile(r"[*?\[]")


class Ignore:
    """The patterns of a ``.dockerignore``; the last one that matches a path, or a directory above it, decides."""

    def __init__(self, text: str) -> None:
        self._rules = []
        for line in text.splitlines():
            line = line.strip()
            keeps, line = line.startswith("!"), line.removeprefix("!").strip()
            if line and not line.startswith("#") and (path := os.path.normpath(line).strip("/")) not in ("", "."):
                self._rules.append((keeps, compile_pattern(path, "(/.*)?")))
            if len(self._rules) > MAX_RULES:
                raise BadArchive(f".dockerignore: more than {MAX_RULES} patterns")
        self.has_exceptions = any(keeps for keeps, _ in self._rules)

    def hides(self, path: str) -> bool:
        hidden = False
        for keeps, pattern in self._rules:
            if pattern.fullmatch(path):
                hidden = not keeps
        return hidden


def compile_pattern(pattern: str, after: str = "") -> re.Pattern[str]:
    """A pattern of Go's ``filepath.Match``, in which ``**`` stands for any directories. Raises :class:`BadArchive`.

    What stands between two wildcards is matched where it comes first, and never elsewhere: the last wildcard alone
    decides on the rest. So no pattern takes exponential time.
    """
    wildcards, literals = _split_pattern(pattern)
    any_depth = [number for number, each in enumerate(wildcards) if each != "*"]
    found, is_open = literals[0], False
    for number, (wildcard, literal) in enumerate(zip(wildcards, literals[1:], strict=True)):
        lazy, greedy = _WILDCARDS[wildcard]
        if wildcard != "*":
            found, is_open = found + ")" * is_open, number != any_depth[-1]
            found += f"(?>{lazy}{literal}" if is_open else f"{greedy}{literal}"
        else:
            found += f"(?>{lazy}{literal})" if number < len(wildcards) - 1 else f"{greedy}{literal}"
    try:
        return re.compile(found + after, re.DOTALL)
    except re.error as error:
        raise BadArchive(f"{pattern[:100]}: {error.msg}") from None


_WILDCARDS = {"*": ("[^/]*?", "[^/]*"), "**": (".*?", ".*"), "**/": ("(?:.*?/)??", "(?:.*/)?")}
_PART = re.compile(r"(?:(?<![^/])\*{2,}/)|\*+|\[(.[^\]]*)\]|\\(.)|(.)", re.DOTALL)


def _split_pattern(pattern: str) -> tuple[Sequence[str], Sequence[str]]:
    """The wildcards of a pattern, and regular expressions for what stands before, between and after them."""
    wildcards, literals = list[str](), [""]
    for part in _PART.finditer(pattern):
        if part[0].startswith("*"):
            wildcards.append(part[0].lstrip("*").rjust(min(part[0].count("*"), 2) + part[0].count("/"), "*"))
            literals.append("")
        elif part[1]:
            body = part[1].removeprefix("^")
            ranges = (one.groups() for one in re.finditer(r"(.)-(.)|(.)", body, re.DOTALL))
            inside = "".join("-".join(re.escape(letter) for letter in one if letter) for one in ranges)
            literals[-1] += f"(?!/)[{'^' * (body != part[1])}{inside}]"
        else:
            literals[-1] += "[^/]" if part[0] == "?" else re.escape(part[2] or part[3])
    return wildcards, literals


class Item(Struct, frozen=True):
    """Something to copy: ``path`` in its directory, and ``below``, its path below what was named ("" for that)."""

    path: str
    below: str
    status: os.stat_result


class Source(Struct, frozen=True):
    """What a word of COPY names: ``path`` without links, and all that is copied, directories first."""

    path: str
    name: str
    items: Sequence[Item]

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.items[0].status.st_mode)


class Files:
    """A directory to copy from; ``owners`` are those of its files, which keep them.

    ``known`` are digests of files of the whole build: a file and its copies are read for them once.
    """

    def __init__(
        self, top: int, bounds: Bounds, known: Digests, ignore: Ignore | None = None, owners: Owners | None = None
    ) -> None:
        self.top, self._bounds, self._known, self._ignore = top, bounds, known, ignore
        self.owners = owners if owners is not None else Owners()

    def find(self, words: Sequence[str], amount: Amount | None = None) -> Sequence[Source]:
        """What paths or patterns name. Raises :class:`BadArchive`: one names nothing, or what can't be copied.

        All of it counts towards the bounds, besides the ``amount`` that does already.
        """
        counted = amount if amount is not None else Amount()
        return [source for word in words for source in self._find(word, counted)]

    def _find(self, word: str, amount: Amount) -> Sequence[Source]:
        path = os.path.normpath("/" + word)[1:] if word.strip("/") else ""
        if ".." in word.split("/"):
            raise BadArchive(f"{word} has .. in its path: only what is in the directory is copied")
        paths = sorted(self._match(path)) if _WILD.search(path) else [path]
        found = [self._read(each, amount) for each in paths if not self._is_hidden(each)]
        if not found:
            raise BadArchive(f"{word}: there is nothing of that name, or .dockerignore leaves it out")
        return found

    def _is_hidden(self, path: str) -> bool:
        return self._ignore is not None and bool(path) and self._ignore.hides(path)

    def _match(self, pattern: str) -> Iterator[str]:
        waiting = [("", pattern.split("/"))]
        while waiting:
            path, (part, *rest) = waiting.pop()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                real, rule = trees.resolve(self.top, path), compile_pattern(part)
                with beneath.open_directory(self.top, real) as here:
                    for name in os.listdir(here):
                        if rule.fullmatch(name) and rest:
                            waiting.append((f"{path}/{name}".lstrip("/"), rest))
                        elif rule.fullmatch(name):
                            yield f"{path}/{name}".lstrip("/")

    def _read(self, path: str, amount: Amount) -> Source:
        try:
            real = trees.resolve(self.top, path)
        except OSError as error:
            raise BadArchive(f"{path}: {error.strerror}") from None
        found = beneath.look(self.top, real) if real else os.fstat(self.top)
        if found is None:
            raise BadArchive(f"{path}: it was removed meanwhile")
        return Source(real, path.rpartition("/")[2], list(self._walk(Item(real, "", found), amount)))

    def _walk(self, first: Item, amount: Amount) -> Iterator[Item]:
        waiting = [first]
        while waiting:
            item = waiting.pop()
            mode = item.status.st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise BadArchive(f"{item.path} is a device, a FIFO or a socket, which no image may have")
            amount.entries += 1
            amount.size += item.status.st_size if stat.S_ISREG(mode) else 0
            if amount.entries > self._bounds.entries or amount.size > self._bounds.size:
                raise BadArchive(
                    f"{item.path}: with it more than {self._bounds.entries} entries or {self._bounds.size} bytes"
                )
            hidden = self._is_hidden(item.path)
            if not hidden:
                yield item
            if stat.S_ISDIR(mode) and (not hidden or (self._ignore is not None and self._ignore.has_exceptions)):
                with beneath.open_directory(self.top, item.path) as here:
                    for name in sorted(os.listdir(here), reverse=True):
                        status = os.stat(name, dir_fd=here, follow_symlinks=False)
                        waiting.append(
                            Item(f"{item.path}/{name}".lstrip("/"), f"{item.below}/{name}".lstrip("/"), status)
                        )

    def digest(self, sources: Sequence[Source]) -> str:
        """The sha256 of all that these sources are: names, modes, owners, contents."""
        total = hashlib.sha256()
        for source in sources:
            total.update(f"{source.name!r}\n".encode(errors="surrogatepass"))
            for item in source.items:
                what = ""
                if stat.S_ISREG(item.status.st_mode):
                    what = self._digest_file(item)
                elif stat.S_ISLNK(item.status.st_mode):
                    what = _read_link(self.top, item.path)
                owner = msgspec.structs.replace(self.owners.find(item.path), path=b"")
                line = f"{item.below!r} {item.status.st_mode:o} {what!r} {owner}\n"
                total.update(line.encode(errors="surrogatepass"))
        return total.hexdigest()

    def _digest_file(self, item: Item) -> str:
        if (known := self._known.get(_key(item.status))) is not None:
            return known
        with beneath.open_file(self.top, item.path) as file:
            status, now = os.fstat(file), time.time_ns()
            found = beneath.copy(file)
        if status.st_ctime_ns < now - TICK:  # else another content may get the same stamp
            self._known[_key(status)] = found
        return found

    def stamp(self, sources: Sequence[Source]) -> str:
        """Differs when one of these sources was changed since, without reading it."""
        items = [(item.path, beneath.stamp_of(item.status)) for source in sources for item in source.items]
        return hashlib.sha256(msgspec.json.encode([(repr(path), stamp) for path, stamp in items])).hexdigest()

    def copy(self, source: Source, top: int, target: str, mode: int | None) -> Mapping[str, str]:
        """Copy a source to a path below a directory. ``mode``: of all files and directories, not theirs.

        Returns the paths of what was made, without links, each with that of what it is a copy of, or with "".
        """
        target, made, paths = target.strip("/"), [], list[str]()
        directory = trees.make_directories(top, target if source.is_directory else target.rpartition("/")[0], paths)
        copies = dict.fromkeys(paths, "")
        is_new = directory in copies
        target = directory if source.is_directory else target
        for item in source.items:
            path = f"{target}/{item.below}".strip("/") if item.below else target
            above = trees.make_directories(top, path.rpartition("/")[0])
            path = f"{above}/{path.rpartition('/')[2]}".lstrip("/")
            if stat.S_ISDIR(item.status.st_mode):
                path = trees.make_directories(top, path)
                if item.below or (is_new and mode is not None):
                    made.append((path, item.status))
            else:
                self._put(item, top, path, mode)
            if item.below or not source.is_directory:
                copies[path] = item.path
        for path, status in reversed(made):
            with beneath.open_directory(top, path) as here:
                os.fchmod(here, mode if mode is not None else status.st_mode & 0o1777)
                os.utime(here, ns=(status.st_mtime_ns, status.st_mtime_ns))
        return copies

    def _put(self, item: Item, top: int, path: str, mode: int | None) -> None:
        with beneath.open_parent(top, path) as (above, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=above)
            times = (item.status.st_mtime_ns, item.status.st_mtime_ns)
            if stat.S_ISLNK(item.status.st_mode):
                os.symlink(_read_link(self.top, item.path), name, dir_fd=above)
                os.utime(name, ns=times, dir_fd=above, follow_symlinks=False)
                return
            with beneath.open_file(self.top, item.path) as file:
                key = _key(os.fstat(file))
                made = write_file(above, name, file, mode if mode is not None else item.status.st_mode & 0o777, times)
                if key in self._known and key == _key(os.fstat(file)):
                    self._known[_key(made)] = self._known[key]


def _key(status: os.stat_result) -> tuple[int, beneath.Stamp]:
    return status.st_dev, beneath.stamp_of(status)


def write_file(above: int, name: str, file: int, mode: int, times: tuple[int, int]) -> os.stat_result:
    """Make a file with the content of another one; the name is free. Returns its status."""
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)
    try:
        layers.copy_content(file, fd)
        os.fchmod(fd, mode)
        os.utime(fd, ns=times)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _read_link(top: int, path: str) -> str:
    with beneath.open_parent(top, path) as (above, name):
        return os.readlink(name, dir_fd=above)
