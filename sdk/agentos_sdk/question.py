"""A question to the model out of Python's values: images are bytes or files, what is None is left out."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which nobody needs at run time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal, TypeAlias, TypedDict

    ImageFile: TypeAlias = bytes | str | PathLike[str]

    class More(TypedDict, total=False):
        """What else THINK takes, by the names that it has there."""

        messages: Sequence[Any] | None
        images: Sequence[ImageFile] | None
        max_tokens: int | None
        tools: Sequence[Any] | None
        tool_choice: Literal["auto", "none", "required"] | None
        response_schema: Mapping[str, Any] | None
        stop: Sequence[str] | None
        timeout: float | None

    class Options(More, total=False):
        """``More``, and what the original's ``think`` took behind the prompt."""

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
    """THINK's fields. Reads the files that are named: ``OSError`` where that can't be done."""
    fields: dict[str, Any] = {"prompt": prompt, **options, "stream": stream or None}
    mime_type = fields.pop("image_mime_type", None)
    if fields.get("image") is not None:
        fields["image"] = picture(fields["image"], mime_type)
    if fields.get("images") is not None:
        fields["images"] = [picture(image) for image in fields["images"]]
    return {name: value for name, value in fields.items() if value is not None}


def picture(image: ImageFile, mime_type: str | None = None) -> dict[str, str]:
    """An image as THINK takes it: bytes, or a file's path. Without ``mime_type`` its first bytes tell what it is."""
    from binascii import b2a_base64

    if not isinstance(image, bytes):
        with open(image, "rb") as file:
            image = file.read()
    return {"data": b2a_base64(image, newline=False).decode(), "mime_type": mime_type or kind(image) or "image/jpeg"}


def kind(image: bytes) -> str | None:
    """What sort of an image begins like this, if it is any that we know."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in STARTS if image.startswith(start)), None)
