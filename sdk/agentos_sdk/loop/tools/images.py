"""The tool view_image: shows an image file to the model, as a message of the user's after the tool's result."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from agentos_sdk.clients.question import detect_mime_type
from agentos_sdk.loop.engine.effects import Work

from .file_tools import PATH, read_whole
from .tools import Context, Tool, ToolError, parameters

MAX_IMAGE = 3 << 20  # bytes: those that are shown at a time fit into one question
KINDS = "JPEG, PNG, GIF, WebP, BMP or TIFF"


def read_image(path: str) -> Work[tuple[bytes, str]]:
    """An image file and its MIME type; raises :class:`ToolError`."""
    data = yield from read_whole(path)
    if data is None:
        raise ToolError(f"{path}: no such file")
    if len(data) > MAX_IMAGE:
        raise ToolError(
            f"{path} has {len(data)} bytes; expected an image of at most {MAX_IMAGE >> 20} MiB: make it smaller"
        )
    if (kind := detect_mime_type(data)) is None:
        raise ToolError(f"{path}: expected an image: {KINDS}")
    return data, kind


def _view(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    data, kind = yield from read_image(arguments["path"])
    return f"{arguments['path']}: {kind}, {len(data)} bytes; it is shown to you after this"


def show_images(calls: Sequence[Mapping[str, Any]]) -> Work[list[dict[str, Any]]]:
    """The messages with the images of calls of view_image that have succeeded; what can't be read now is said."""
    messages: list[dict[str, Any]] = []
    for call in calls:
        path = call["arguments"]["path"]
        try:
            data, kind = yield from read_image(path)
        except ToolError as error:  # it was changed since
            messages.append({"role": "user", "content": f"[no image: {error}]"})
            continue
        image = {"type": "image", "data": b64encode(data).decode(), "mime_type": kind}
        messages.append({"role": "user", "content": [{"type": "text", "text": f"The image {path}:"}, image]})
    return messages


VIEW_IMAGE = Tool(
    "view_image",
    f"Look at an image file ({KINDS}).",
    parameters("path", path=PATH),
    _view,
    "again",
    together=True,
)
