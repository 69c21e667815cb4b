"""Import an archive into the store: all of it, or nothing.

What is given says itself what it is: a directory with an OCI layout; a tar with an OCI layout or of ``docker save``; or
a tar with the files of a root. Only an archive of blobs from a pipe is written to disk first, as its parts are read in
another order than they come.

Every digest that the archive names is compared, and the tree gets its name only after that. Everything blocks.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import BinaryIO

from msgspec import Struct

from agentos.private_files import display_path
from agentos.sandbox.watch.tree_usage import measure_tree
from agentos.services.snapshots import beneath

from . import archive
from .archive import Files, Found, TarFiles
from .config import ImageConfig, take_config
from .errors import BadArchive
from .owners import MOST_ID, TREE, Owners, can_hold
from .store import NAME, NAME_RULE, Image, Images, NewTree, describe_tree, read_accounts
from .streams import MAX_READ, Stream, buffered, decompress, naming_damage
from .tar import read_entries
from .unpack import Bounds, Unpacking

_ALLOWANCE = 2 << 10  # bytes of an archive for each entry, besides the contents
_PEEKED = 64 << 10  # bytes in which the first entry must be


class Said(Struct, frozen=True):
    """What an archive says of its image."""

    digest: str
    format: str
    layers: int
    config: ImageConfig = ImageConfig()
    left_out: Sequence[str] = ()


def import_image(images: Images, source: "str | BinaryIO", name: str, bounds: Bounds = Bounds()) -> Image:  # noqa: B008
    """Import a directory or a file, by its path, or a stream; an image of this name is replaced.

    Raises :class:`BadArchive`, :class:`~agentos.images.errors.BadStore` and ``OSError``; then nothing is changed.
    """
    if not NAME.fullmatch(name):
        raise BadArchive(f"NAME: expected {NAME_RULE}, got {name!r}")
    if isinstance(source, str) and os.path.isdir(source):
        with archive.open_layout(source) as layout:
            if not layout.has("index.json"):
                raise BadArchive(
                    f"{source} has no index.json, so it is no OCI layout; of a directory with the files of a root: "
                    f"`tar -C {source} -c . | agentos image import - {name}`"
                )
            return _import(images, name, bounds, layout, archive.find_image(layout, os.uname().machine))
    with contextlib.ExitStack() as stack:
        given = stack.enter_context(open(source, "rb", buffering=MAX_READ)) if isinstance(source, str) else source
        raw = given if hasattr(given, "peek") else stack.enter_context(buffered(given))  # type: ignore[arg-type]
        plain = decompress(raw, "the archive")  # type: ignore[arg-type]
        data = plain if plain is raw else stack.enter_context(buffered(plain))  # type: ignore[arg-type]
        if not archive.holds_blobs(_first_path(data)):
            return _import_root(images, name, bounds, data)
        if plain is not raw or not data.seekable():
            data = stack.enter_context(_spool(images, data, bounds))
        files = TarFiles(data)
        return _import(images, name, bounds, files, archive.find_image(files, os.uname().machine))


def _first_path(data: BinaryIO) -> str:
    with naming_damage("the archive"):
        begin: bytes = data.peek(_PEEKED)[:_PEEKED]  # type: ignore[attr-defined]
    if not begin:
        raise BadArchive("the archive: it is empty")
    entry = next(read_entries(Stream(BytesIO(begin), "the archive", _PEEKED)), None)
    return entry.path if entry is not None else ""


@contextlib.contextmanager
def _spool(images: Images, data: BinaryIO, bounds: Bounds) -> Iterator[BinaryIO]:
    """The data as a file that can seek, which has no name and so never stays."""
    stream = Stream(data, "the archive", _limit(bounds), hashed=False)
    with images.make() as new, tempfile.TemporaryFile(dir=new.root) as file:
        while part := stream.read(MAX_READ):
            file.write(part)
        yield file


def _import(images: Images, name: str, bounds: Bounds, files: Files, found: Found) -> Image:
    config, left_out = take_config(found.config.config)
    owners = Owners()
    with images.make() as new, _unpack(new, bounds, owners) as unpacking:
        for blob, diff_id in zip(found.layers, found.config.rootfs.diff_ids, strict=True):
            with archive.open_blob(files, blob) as hashed, buffered(hashed) as raw:
                stream = Stream(decompress(raw, blob.path), blob.path, _limit(bounds))
                unpacking.add_layer(stream)
                while raw.read(MAX_READ):
                    pass
                archive.check_blob(blob, hashed.digest, hashed.size)
                if stream.digest != diff_id:
                    raise BadArchive(f"{blob.path}: unpacked its digest is {stream.digest}, and should be {diff_id}")
        unpacking.finish()
        digest, count = found.digest, len(found.layers)
        return finish(images, new, name, Said(digest, found.format, count, config, left_out), owners)


def _import_root(images: Images, name: str, bounds: Bounds, data: BinaryIO) -> Image:
    stream, owners = Stream(data, "the archive", _limit(bounds)), Owners()
    with images.make() as new, _unpack(new, bounds, owners) as unpacking:
        unpacking.add_layer(stream)
        unpacking.finish()
        return finish(images, new, name, Said(stream.digest, "root tar", 1), owners)


@contextlib.contextmanager
def _unpack(new: NewTree, bounds: Bounds, owners: Owners) -> Iterator[Unpacking]:
    top = os.open(new.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    unpacking = Unpacking(top, bounds, owners)
    try:
        yield unpacking
    finally:
        unpacking.close()
        os.close(top)


def finish(images: Images, new: NewTree, name: str, said: Said, owners: Owners) -> Image:
    """Write a tree to disk and name it."""
    place = new.root.parent
    top = os.open(new.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size, entries, directories, names = describe_tree(top)
        accounts = read_accounts(top)
        owners.prune(top)
        if can_hold():
            owners.lay_over(top, place)
            owners.save(place)
        if (place / TREE).is_dir():
            with beneath.open_top(display_path(place / TREE)) as over:
                size += measure_tree(os.dup(over), sys.maxsize, sys.maxsize).size
        beneath.sync(top)
    finally:
        os.close(top)
    left_out = (*said.left_out, *_tell_lost(owners))
    given = (said.digest, said.format, said.layers, size, entries, time.time(), new.id, directories, names)
    image = Image(name, *given, said.config, left_out, accounts)
    images.name(image)
    return image


def _tell_lost(owners: Owners) -> Iterator[str]:
    if owners and not can_hold():
        what, why = f"{len(owners)} entries have such", "a kernel without root has no ids for them"
        yield f"owners besides root, set-id bits and file capabilities aren't taken: {what}, and {why}"
    if owners.beyond:
        yield f"owners beyond {MOST_ID} aren't taken: {owners.beyond} entries have such, and are root's"


def _limit(bounds: Bounds) -> int:
    return bounds.size + bounds.entries * _ALLOWANCE
