"""Find the image in an archive: an OCI layout or what ``docker save`` writes, as a tar or (OCI) as a directory.

Blobs are named by their digest, and an archive may name them wrongly: :mod:`agentos.images.importer` compares.
Everything blocks.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol, TypeVar

import msgspec
from msgspec import Struct, field

from agentos.sandbox.files import openat2
from agentos.services.snapshots import beneath
from agentos.structs import learn

from .config import MACHINES, ImageFile
from .errors import BadArchive
from .streams import Hashed, Section, Stream, buffered
from .tar import read_entries

MAX_JSON = 4 << 20  # bytes of a file that is parsed
MAX_FILES = 10_000  # in an archive of blobs
MAX_LAYERS = 500
_MAX_INDEXES = 4  # one within the other
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BLOB_PATH = re.compile(r"blobs/(sha256)/([0-9a-f]{64})|([0-9a-f]{64})\.(json|tar)")
_FIRST_NAMES = re.compile(
    r"(blobs(/.*)?|oci-layout|index\.json|manifest\.json|repositories|[0-9a-f]{64}(\.json|\.tar|/.*)?)"
)
T = TypeVar("T")


class Platform(Struct):
    architecture: str = ""
    os: str = ""


class Descriptor(Struct, rename="camel"):
    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Index(Struct):
    manifests: list[Descriptor]


class Manifest(Struct):
    config: Descriptor
    layers: list[Descriptor]


class Saved(Struct, rename="pascal"):
    """An image in ``manifest.json`` of ``docker save``."""

    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


learn(Index, Manifest, list[Saved], ImageFile)


class Blob(Struct, frozen=True):
    """A file of an archive; ``digest`` and ``size`` are what it must have, if that is said."""

    path: str
    digest: str | None = None
    size: int | None = None


class Found(Struct, frozen=True):
    """An image in an archive. ``digest`` is that of its manifest, or of its configuration where it has none."""

    format: str
    digest: str
    config: ImageFile
    layers: Sequence[Blob] = field(default_factory=tuple)


class Files(Protocol):
    """The files of an archive by their paths."""

    def has(self, path: str) -> bool: ...

    def open(self, path: str) -> "contextlib.AbstractContextManager[BinaryIO]":
        """A file for reading. Raises :class:`BadArchive` if there is none."""


class Directory:
    """Files of a directory, in which no link is followed."""

    def __init__(self, top: int) -> None:
        self._top = top

    def has(self, path: str) -> bool:
        return beneath.look(self._top, path) is not None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        try:
            with beneath.open_file(self._top, path) as fd, os.fdopen(os.dup(fd), "rb") as file:
                yield file
        except FileNotFoundError:
            raise BadArchive(f"{path} isn't in it") from None
        except OSError as error:
            raise BadArchive(f"{path}: {error.strerror}") from None


class TarFiles:
    """Files of a tar archive that can seek."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._places: dict[str, tuple[int, int]] = {}
        raw.seek(0)
        stream = Stream(raw, "the archive", 1 << 62, hashed=False)
        for number, entry in enumerate(read_entries(stream)):
            if number >= MAX_FILES:
                raise BadArchive(f"the archive: {entry.path} is one of more than {MAX_FILES} files")
            if entry.kind == "file":
                self._places[entry.path] = (stream.position, entry.size)

    def has(self, path: str) -> bool:
        return path in self._places

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        if path not in self._places:
            raise BadArchive(f"{path} isn't in it")
        with buffered(Section(self._raw, *self._places[path])) as file:
            yield file


def holds_blobs(first: str) -> bool:
    """Whether an archive whose first entry has this path is one of blobs, and not the files of an image."""
    return _FIRST_NAMES.fullmatch(first) is not None


def find_image(files: Files, machine: str) -> Found:
    """The one image of an archive for this machine (of ``os.uname``). Raises :class:`BadArchive`."""
    if files.has("manifest.json"):  # what docker save writes may have an index, too, that names blobs it has not
        return _find_saved(files, machine)
    if files.has("index.json"):
        return _find_oci(files, machine)
    raise BadArchive("it has neither index.json (an OCI layout) nor manifest.json (`docker save`)")


def _find_saved(files: Files, machine: str) -> Found:
    images = _parse(_read(files, Blob("manifest.json")), list[Saved], "manifest.json")
    if len(images) != 1:
        names = ", ".join(tag for image in images[:10] for tag in image.repo_tags or ())
        raise BadArchive(f"manifest.json: it has {len(images)} images ({names}): save one of them alone")
    image = images[0]
    data = _read(files, _blob_of_path(image.config))
    config = _parse(data, ImageFile, image.config)
    _check_config(config, len(image.layers), image.config, machine)
    digest = _blob_of_path(image.config).digest or _digest(data)
    return Found("docker archive", digest, config, [_blob_of_path(path) for path in image.layers])


def _find_oci(files: Files, machine: str) -> Found:
    named = "index.json"
    descriptors = _parse(_read(files, Blob(named)), Index, named).manifests
    for _ in range(_MAX_INDEXES):
        one = _choose(descriptors, machine, named)
        data = _read(files, _blob(one, named))
        named = one.digest
        if "index" not in one.media_type and "manifest.list" not in one.media_type:
            break
        descriptors = _parse(data, Index, named).manifests
    else:
        raise BadArchive(f"{named}: more than {_MAX_INDEXES} indexes, each in the other")
    manifest = _parse(data, Manifest, named)
    config = _parse(_read(files, _blob(manifest.config, named)), ImageFile, manifest.config.digest)
    _check_config(config, len(manifest.layers), manifest.config.digest, machine)
    return Found("oci layout", one.digest, config, [_blob(layer, named) for layer in manifest.layers])


def _choose(descriptors: Sequence[Descriptor], machine: str, named: str) -> Descriptor:
    """The one for this machine; what only attests another one is left out."""
    own = MACHINES.get(machine, machine)
    images = [one for one in descriptors if "vnd.docker.reference.type" not in (one.annotations or {})]
    if len(images) > 1:
        platforms = [one.platform for one in images]
        images = [one for one in images if one.platform is not None and one.platform.architecture == own]
        if len(images) != 1:
            have = ", ".join(one.architecture if one is not None else "one that says none" for one in platforms[:10])
            raise BadArchive(f"{named}: expected one image for {own}, and it has {len(images)} of these: {have}")
    if not images:
        raise BadArchive(f"{named}: it has no image")
    return images[0]


def _check_config(config: ImageFile, layers: int, named: str, machine: str) -> None:
    own = MACHINES.get(machine, machine)
    if config.os not in ("", "linux") or config.architecture not in ("", own):
        raise BadArchive(f"{named}: it is for {config.os} {config.architecture}, and this is linux {own}")
    if len(config.rootfs.diff_ids) != layers:
        raise BadArchive(f"{named}: it has {len(config.rootfs.diff_ids)} diff_ids for {layers} layers")
    if layers > MAX_LAYERS:
        raise BadArchive(f"{named}: it has {layers} layers, and more than {MAX_LAYERS} are too many")


def _blob(one: Descriptor, named: str) -> Blob:
    if not _DIGEST.fullmatch(one.digest):
        raise BadArchive(f"{named}: expected a digest sha256:HEX, got {one.digest[:100]!r}")
    return Blob(f"blobs/sha256/{one.digest.removeprefix('sha256:')}", one.digest, one.size)


def _blob_of_path(path: str) -> Blob:
    """A file that an archive of Docker's names: its name is its digest, or says nothing (``HEX/layer.tar``)."""
    found = _BLOB_PATH.fullmatch(path)
    return Blob(path, f"sha256:{found[2] or found[3]}" if found is not None else None)


def _read(files: Files, blob: Blob) -> bytes:
    with files.open(blob.path) as file:
        data = file.read(MAX_JSON + 1)
    if len(data) > MAX_JSON:
        raise BadArchive(f"{blob.path}: more than {MAX_JSON} bytes of JSON")
    check_blob(blob, _digest(data), len(data))
    return data


def check_blob(blob: Blob, digest: str, size: int) -> None:
    """Raise :class:`BadArchive` unless a file is what was said of it."""
    if blob.size is not None and size != blob.size:
        raise BadArchive(f"{blob.path}: it has {size} bytes, and should have {blob.size}")
    if blob.digest is not None and digest != blob.digest:
        raise BadArchive(f"{blob.path}: its digest is {digest}, and should be {blob.digest}: it is damaged or forged")


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _parse(data: bytes, kind: type[T], named: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadArchive(f"{named}: {error}") from None


@contextlib.contextmanager
def open_blob(files: Files, blob: Blob) -> Iterator[Hashed]:
    """A file of the archive, whose digest is known when all of it was read."""
    with files.open(blob.path) as file:
        yield Hashed(file)


@contextlib.contextmanager
def open_layout(path: str) -> Iterator[Directory]:
    """A directory with an OCI layout."""
    top = openat2.open_at(-1, os.path.abspath(path), os.O_RDONLY | os.O_DIRECTORY, openat2.NO_MAGIC)
    try:
        yield Directory(top)
    finally:
        os.close(top)
