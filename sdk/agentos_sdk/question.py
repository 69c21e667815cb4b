"""Builds a question to the model from Python values: images are bytes or files, None is left out."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which isn't imported at run time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal, TypeAlias, TypedDict

    ImageFile: TypeAlias = bytes | str | PathLike[str]

    class More(TypedDict, total=False):
        """Further fields of THINK, by their names there."""

        messages: Sequence[Any] | None
        images: Sequence[ImageFile] | None
        max_tokens: int | None
        tools: Sequence[Any] | None
        tool_choice: Literal["auto", "none", "required"] | None
        response_schema: Mapping[str, Any] | None
        stop: Sequence[str] | None
        timeout: float | None

    class Options(More, total=False):
        """``More``, and the arguments of the original's ``think`` after the prompt."""

        image: ImageFile | None
        image_mime_type: str | None
        system_instruction: str | None
        thinking_level: Literal["low", "medium", "high"] | None
        temperature: float | None
        model: str | None


STARTS = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG", "image/png"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
)


def question(prompt: str | None, options: Mapping[str, Any], *, stream: bool = False) -> dict[str, Any]:
    """The fields of THINK. Reads image files; raises ``OSError`` if one can't be read."""
    fields: dict[str, Any] = {"prompt": prompt, **options, "stream": stream or None}
    mime_type = fields.pop("image_mime_type", None)
    if fields.get("image") is not None:
        fields["image"] = picture(fields["image"], mime_type)
    if fields.get("images") is not None:
        fields["images"] = [picture(image) for image in fields["images"]]
    return {name: value for name, value in fields.items() if value is not None}


def picture(image: ImageFile, mime_type: str | None = None) -> dict[str, str]:
    """An image in the form of THINK, from bytes or a file's path.

    Without ``mime_type`` its type follows from its content.
    """
    from binascii import b2a_base64

    if not isinstance(image, bytes):
        with open(image, "rb") as file:
            image = file.read()
    return {"data": b2a_base64(image, newline=False).decode(), "mime_type": mime_type or kind(image) or "image/jpeg"}


def kind(image: bytes) -> str | None:
    """The MIME type of an image by its first bytes, or None."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in STARTS if image.startswith(start)), None)
