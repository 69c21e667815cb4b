"""What an agent has committed in a git repository of its overlay: checked, and told as ``2 commits on main``.

Of the layer only the objects and the refs that would be applied are looked at, as copies in a scratch repository, which
borrows the host's objects. So git runs with a configuration of ours, and can find nothing that the apply doesn't bring;
confined, as an agent could make use of a fault in it.
Each object must have the content that its name says, and each ref everything that it needs. Git writes where the paths
in its index say, and doesn't look at these when it reads them: none may lead into .git or out of the work tree. The
directory isn't read but for its refs and objects. Everything blocks.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from agentos.sandbox.confined import NOBODY, Unconfinable, confine
from agentos.sandbox.host_ids import STORE_IDS
from agentos.services.files.foreign_files import read_regular

from . import beneath, layers, obeyed
from .changes import Change

SECONDS = 20.0  # for one command of git
ALL_SECONDS = 60.0  # for one repository
TOO_LONG = f"that takes more than {ALL_SECONDS:g} s"
MAX_MEMORY = 1 << 30  # bytes that git may allocate
MAX_OUTPUT = 64 << 20  # bytes that one command may say, the paths of an index, and as many about errors
MAX_BORROWED = 8  # directories of objects
MAX_OBJECT = 256 << 20  # bytes of one object, unpacked
MAX_REPOSITORIES = 8
MAX_REFS = 1000  # of one repository
MAX_REF_FILE = 16 << 20  # bytes; packed-refs is the largest
MAX_INDEX = 256 << 20  # bytes
_PACKED = re.compile(r"^([0-9a-f]{40,64}) (refs/\S+)$", re.MULTILINE)
_NAME = re.compile(r"(?:ref: \S+|[0-9a-f]{40}(?:[0-9a-f]{24})?)\s*")
_HEADS, _REPLACE = "refs/heads/", "refs/replace/"

Refs = Mapping[str, str]
Git = Callable[[Sequence[str], Sequence[str]], str]
"""Runs a command of git with lines of input."""


class Commits(Struct, frozen=True):
    """``commits`` new ones on a branch of a repository, whose path in the directory is ``""`` at the top.

    ``dropped`` are commits of the directory's branch that the new one doesn't have, or that no branch has any more if
    there is no new one.
    """

    repository: str
    branch: str
    commits: int
    dropped: int


class Unsound(Exception):
    """A repository's changes can't be applied; the text says why."""


def find_commits(
    tops: Sequence[int], directory: int, changes: Sequence[Change], since: int
) -> tuple[list[Commits], dict[str, str], set[str]]:
    """The commits in all changes of layers, the newest first, and by ``.git`` or index why it can't be applied.

    Last the paths of refs that the host has moved after ``since`` and packed, so that their files are gone.
    """
    found: list[Commits] = []
    moved: set[str] = set()
    unsound: dict[str, str] = {}
    for number, root in enumerate(dict.fromkeys(one.root for one in changes if _is_of_commits(one))):
        own = [one for one in changes if one.root == root and one.kind == "file"]
        try:
            if number >= MAX_REPOSITORIES:
                raise Unsound(f"more than {MAX_REPOSITORIES} repositories have changes")
            told, packed_since, bad_index = _look(tops, directory, root, own, since)
            found += told
            unsound |= bad_index
            moved |= {one.path for one in own if one.under is None and one.path in packed_since}
        except (Unsound, OSError) as error:
            unsound[root] = f"its commits can't be checked: {error.strerror if isinstance(error, OSError) else error}"
    return found, unsound, moved


def _is_of_commits(change: Change) -> bool:
    inside = change.path.removeprefix(f"{change.root}/")
    return (
        change.root.endswith(".git")
        and inside != change.path
        and (inside.startswith(("objects/", "refs", "packed-")) or inside == "index")
    )


def _look(
    tops: Sequence[int], directory: int, root: str, changes: Sequence[Change], since: int
) -> tuple[Sequence[Commits], AbstractSet[str], Mapping[str, str]]:
    until = time.monotonic() + ALL_SECONDS
    packed, loose = _read_host_refs(directory, root)
    theirs, after = {**packed, **loose}, _read_refs_after(tops, root, changes, packed, loose)
    new = {name: tip for name, tip in after.items() if theirs.get(name) != tip}
    if len(new) > MAX_REFS:
        raise Unsound(f"more than {MAX_REFS} refs have changed")
    if any(name.startswith(_REPLACE) for name in new):
        raise Unsound("its packed-refs replaces objects by others")
    with tempfile.TemporaryDirectory(prefix="aos-commits-") as made:
        scratch = Path(made)
        length = len(next(iter({**theirs, **after}.values()), "0" * 40))
        owner = os.fstat(tops[0]).st_uid
        uid = NOBODY if owner in (0, STORE_IDS[0]) else owner  # no process has the store's ids
        _make_repository(scratch, length, uid)
        with suppress(FileNotFoundError, NotADirectoryError):
            _borrow_objects(directory, root, scratch)
        run = partial(_run, scratch, until, uid)
        for pack in _copy_objects(tops, root, changes, scratch / "objects", until):
            run(("index-pack", "--verify", str(pack)), [])
        indexes = [one for one in changes if one.path == f"{root}/index" and one.what != "deleted"]
        bad_index = {one.path: why for one in indexes if (why := _find_flaw(tops, one, scratch, run))}
        known = _without(theirs)
        if new:
            run(("rev-list", "--objects", "--quiet", "--stdin"), [*new.values(), *known])
        found = [*_count(run, new, theirs, known), *_count_lost(run, theirs, after)]
    repository = root.removesuffix(".git").rstrip("/")
    packing = beneath.look(directory, f"{root}/packed-refs")
    others = (
        packed.keys() & new.keys() - loose.keys() if packing is not None and packing.st_ctime_ns >= since else set()
    )
    kept = {f"{_HEADS}{one.branch}" for one in found if not one.dropped}  # these go on from the host's
    told = [msgspec.structs.replace(one, repository=repository) for one in found]
    return told, {f"{root}/{name}" for name in others - kept}, bad_index


def _count(run: Git, new: Refs, theirs: Refs, known: Sequence[str]) -> Iterator[Commits]:
    for name, tip in sorted(new.items()):
        if name.startswith(_HEADS):
            commits = int(run(("rev-list", "--count", "--stdin"), [tip, *known]))
            former = theirs.get(name)
            dropped = int(run(("rev-list", "--count", "--stdin"), [former, f"^{tip}"])) if former else 0
            yield Commits("", name.removeprefix(_HEADS), commits, dropped)


def _count_lost(run: Git, theirs: Refs, after: Refs) -> Iterator[Commits]:
    """The branches that would be gone, with commits that no other one has."""
    for name in sorted(theirs.keys() - after.keys()):
        if name.startswith(_HEADS):
            dropped = int(run(("rev-list", "--count", "--stdin"), [theirs[name], *_without(after)]))
            if dropped:
                yield Commits("", name.removeprefix(_HEADS), 0, dropped)


def _without(refs: Refs) -> Sequence[str]:
    """The revisions for git that leave out what these branches have."""
    return [f"^{tip}" for name, tip in refs.items() if name.startswith(_HEADS)][:MAX_REFS]


def _read_refs_after(tops: Sequence[int], root: str, changes: Sequence[Change], packed: Refs, loose: Refs) -> Refs:
    """The refs as an apply would leave them; those of a file of their own count more than packed ones."""
    left = dict(loose)
    for path in sorted(one.path for one in changes if one.what == "deleted"):
        left.pop(path.removeprefix(f"{root}/"), None)
        packed = {} if path == f"{root}/packed-refs" else packed
    for path in sorted(one.path for one in changes if one.what != "deleted"):
        if path == f"{root}/packed-refs":
            packed = _read_refs(tops, root, path)
        elif path.startswith(f"{root}/refs/"):
            left |= _read_refs(tops, root, path)
    return {**packed, **left}


def _read_host_refs(directory: int, root: str) -> tuple[Refs, Refs]:
    """The packed refs of the directory's, and those with a file of their own."""
    packed: Refs = {}
    loose: dict[str, str] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        packed = _read_refs([directory], root, f"{root}/packed-refs")
    waiting = [f"{root}/refs"]
    while waiting and len(loose) < MAX_REFS:
        above = waiting.pop()
        with suppress(FileNotFoundError, NotADirectoryError), beneath.open_directory(directory, above) as here:
            for name in os.listdir(here):
                if os.path.isdir(f"/proc/self/fd/{here}/{name}"):
                    waiting.append(f"{above}/{name}")
                else:
                    loose |= _read_refs([directory], root, f"{above}/{name}")
    return packed, loose


def _read_refs(tops: Sequence[int], root: str, path: str) -> Refs:
    with layers.open_file(tops, path) as fd, open(fd, encoding="utf-8", errors="replace", closefd=False) as file:
        text = file.read(MAX_REF_FILE + 1)
    if len(text) > MAX_REF_FILE:
        raise Unsound(f"{path} is larger than {MAX_REF_FILE >> 20} MiB")
    if path == f"{root}/packed-refs":
        return {name: tip for tip, name in _PACKED.findall(text)}
    if _NAME.fullmatch(text) is None:
        raise Unsound(f"{path} names no commit")
    return {} if text.startswith("ref:") else {path.removeprefix(f"{root}/"): text.strip()}


def _make_repository(scratch: Path, length: int, uid: int) -> None:
    kind = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = "
    (scratch / "config").write_text(kind + ("sha256\n" if length == 64 else "sha1\n"))
    (scratch / "HEAD").write_text("ref: refs/heads/none\n")
    (scratch / "refs").mkdir()
    (scratch / "objects" / "info").mkdir(parents=True)
    if os.geteuid() == 0:  # git asks access(2) about these, to which capabilities don't count
        for place in (scratch, scratch / "refs", scratch / "objects"):
            os.chown(place, uid, uid)


def _borrow_objects(directory: int, root: str, scratch: Path) -> None:
    with beneath.open_directory(directory, f"{root}/objects") as objects:
        path = os.readlink(f"/proc/self/fd/{objects}")
    if "\n" in path:
        raise Unsound("its path has a line break")
    (scratch / "objects" / "info" / "alternates").write_text(f"{path}\n")


def _copy_objects(tops: Sequence[int], root: str, changes: Sequence[Change], objects: Path, until: float) -> list[Path]:
    """Copy them, and compare each with its name; returns the packs, which are to be compared by git."""
    packs = []
    for change in changes:
        if change.what == "deleted" or not obeyed.is_object(change.path):
            continue
        inside = change.path.removeprefix(f"{root}/objects/")
        copy = objects / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        with layers.open_file(tops, change.path) as source, open(copy, "xb") as target:
            if beneath.copy(source, target.fileno()) != change.content:
                raise Unsound("the agent changes it at this moment")
        name = inside.replace("/", "")
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", name) and _digest(copy, len(name), until) != name:
            raise Unsound(f"{change.path} isn't what its name says")
        if inside.startswith("pack/") and inside.endswith(".pack"):
            packs.append(copy)
    return packs


def _find_flaw(tops: Sequence[int], change: Change, scratch: Path, run: Git) -> str:
    """Why an index can't be applied, such as a path that git itself would never put into one; empty if it can."""
    try:
        if change.size > MAX_INDEX:
            raise Unsound(f"it is larger than {MAX_INDEX >> 20} MiB")
        with layers.open_file(tops, change.path) as source, open(scratch / "index", "xb") as target:
            if beneath.copy(source, target.fileno()) != change.content:
                raise Unsound("the agent changes it at this moment")
        paths = run(("ls-files", "-z"), []).split("\0")[:-1]
    except Unsound as error:
        return f"its paths can't be checked: {error}"
    for path in paths:
        if not {"", ".", "..", ".git"}.isdisjoint(path.lower().split("/")) or obeyed.find_alike(path) == ".git":
            return f"it has the path {ascii(path)[:200]}, to which git would write"
    return ""


def _digest(path: Path, length: int, until: float) -> str:
    """The digest of an unpacked object, in hex; empty if it can't be unpacked."""
    digest = hashlib.sha256() if length == 64 else hashlib.sha1(usedforsecurity=False)
    unpack, size = zlib.decompressobj(), 0
    with open(path, "rb") as file, suppress(zlib.error):
        data = file.read(1 << 16)
        while data and not unpack.eof:
            part = unpack.decompress(data, 1 << 20)
            size += len(part)
            if size > MAX_OBJECT:
                raise Unsound(f"it has an object larger than {MAX_OBJECT >> 20} MiB")
            if time.monotonic() > until:
                raise Unsound(TOO_LONG)
            digest.update(part)
            data = unpack.unconsumed_tail or file.read(1 << 16)
        return digest.hexdigest() if unpack.eof else ""
    return ""


def _find_borrowed(scratch: Path) -> list[str]:
    """The directories of objects that the scratch repository borrows, those that these borrow from among them."""
    found, waiting = list[str](), [str(scratch / "objects")]
    while waiting and len(found) < MAX_BORROWED:
        place = waiting.pop()
        found.append(place)
        with suppress(OSError):
            lines = read_regular(f"{place}/info/alternates", MAX_REF_FILE).decode(errors="surrogateescape").split("\n")
            waiting += [os.path.join(place, line) for line in lines if line and not line.startswith("#")]
    return [place for place in found if os.path.isdir(place)]


def _run(scratch: Path, until: float, uid: int, command: Sequence[str], lines: Sequence[str]) -> str:
    """Run git in the scratch repository, which names no program; returns what it says, or raises :class:`Unsound`.

    An agent has written what it reads: it is confined, and runs as ``uid`` if the kernel is root.
    """
    program = shutil.which("git", path="/usr/local/bin:/usr/bin:/bin")
    if program is None:
        raise Unsound("git isn't installed")
    env = {"GIT_DIR": str(scratch), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    env |= {"GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_ALLOW_PROTOCOL": "none", "HOME": os.devnull}
    left = min(SECONDS, max(until - time.monotonic(), 0.0))
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as told:
        try:
            reads = [str(scratch), *_find_borrowed(scratch)]
            done = subprocess.run(
                confine([program, *command], MAX_MEMORY, MAX_OUTPUT, reads, uid),
                cwd=scratch,
                env=env,
                input="\n".join([*lines, ""]).encode(),
                stdout=said,
                stderr=told,
                timeout=left,
                check=False,
            )
        except subprocess.TimeoutExpired:
            late = time.monotonic() > until
            raise Unsound(TOO_LONG if late else f"git {command[0]} took more than {SECONDS:g} s") from None
        except Unconfinable as error:
            raise Unsound(str(error)) from None
        if done.returncode != 0:
            told.seek(0)
            last = told.read().decode(errors="replace").strip().splitlines() or [f"it ended with {done.returncode}"]
            why = last[-1].replace(f"{scratch}/", "")  # it is part of the digest, which must be the same each time
            raise Unsound(f"git {command[0]}: {why[:200]}")
        said.seek(0)
        return said.read().decode(errors="surrogateescape").strip()
