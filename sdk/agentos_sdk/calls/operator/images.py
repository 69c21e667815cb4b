"""IMAGES: the images that agents can run in."""

from collections.abc import Mapping, Sequence

from agentos_sdk.calls.request import Request, SuccessfulReply
from agentos_sdk.encoding.record import record
from agentos_sdk.opcodes import Op


@record
class TakenConfig:
    """What an agent takes of an image: variables, directory, user's name (both may be empty) and command.

    ``entrypoint`` isn't taken; where there is one ``cmd`` is empty.
    """

    env: Mapping[str, str]
    working_dir: str
    user: str
    cmd: Sequence[str]
    entrypoint: Sequence[str]


@record
class ImageInfo:
    """An image: the ``digest`` of its manifest, or of what it was made of; ``bytes`` on disk.

    ``format`` is ``oci layout``, ``docker archive`` or ``root tar``, ``made`` is in seconds since the epoch, and
    ``left_out`` are sentences about what isn't taken of it.
    """

    name: str
    digest: str
    image_layers: int
    bytes: int
    config: TakenConfig
    format: str
    made: float
    left_out: Sequence[str]


@record
class ImagesReply(SuccessfulReply):
    """By name, without the one that was removed."""

    images: Sequence[ImageInfo]


@record
class Images(Request[ImagesReply]):
    """The images of the kernel's state directory; with ``remove`` that one is removed first.

    One that an agent runs in, or would, can't be removed. The operator alone.
    """

    op = Op.IMAGES
    remove: str | None = None
