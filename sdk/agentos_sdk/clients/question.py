"""Builds a question to the model from Python values: images are bytes or files, None is left out."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from typing import Any, TypeAlias

    ImageFile: TypeAlias = bytes | str | PathLike[str]


MAGIC_NUMBERS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG", "image/png"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
)


def question(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of THINK for arguments of ``think``. Reads image files; raises ``OSError`` if one can't be read."""
    fields = {name: value for name, value in arguments.items() if value is not None}
    mime_type = fields.pop("image_mime_type", None)
    if "image" in fields:
        fields["image"] = encode_image(fields["image"], mime_type)
    if "images" in fields:
        fields["images"] = [encode_image(image) for image in fields["images"]]
    return fields


def encode_image(image: ImageFile, mime_type: str | None = None) -> dict[str, str]:
    """An image in the form of THINK, from bytes or a file's path.

    Without ``mime_type`` its type follows from its content.
    """
    from binascii import b2a_base64

    if not isinstance(image, bytes):
        with open(image, "rb") as file:
            image = file.read()
    return {
        "data": b2a_base64(image, newline=False).decode(),
        "mime_type": mime_type or detect_mime_type(image) or "image/jpeg",
    }


def detect_mime_type(image: bytes) -> str | None:
    """The MIME type of an image by its first bytes, or None."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in MAGIC_NUMBERS if image.startswith(start)), None)
