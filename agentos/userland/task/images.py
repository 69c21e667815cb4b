"""Images that the text of a task names as ``@PATH``. They have to be in its directory: its agent sees nothing else."""

import os
import re

from agentos_sdk.clients.question import detect_mime_type
from agentos_sdk.loop.tools.images import KINDS, MAX_IMAGE

from .repository import BadDirectory, open_file

NAMED = re.compile(r"(?<!\S)@(\S+\.(?:png|jpe?g|gif|webp|bmp|tiff?))\b", re.IGNORECASE)
HINT = "\n\n(Images of this task, for the tool view_image: {})"


def name_images(text: str, directory: str | None) -> str:
    """The text with each ``@PATH`` as a path in the directory, and which these are; raises ``BadDirectory``."""
    found: list[str] = []

    def replace(match: re.Match[str]) -> str:
        found.append(_find(match[1], directory))
        return found[-1]

    named = NAMED.sub(replace, text)
    return named + HINT.format(", ".join(dict.fromkeys(found))) if found else text


def _find(path: str, directory: str | None) -> str:
    """An image's path in the directory; a relative one is in the current directory, or else in the task's."""
    if directory is None:
        raise BadDirectory(f"@{path}: give --dir with the directory of the image: the agent sees nothing else")
    there = [os.path.realpath(each) for each in (path, os.path.join(directory, path))]
    inside = [each for each in there if each.startswith(os.path.join(directory, "")) and os.path.isfile(each)]
    if not inside:
        where = f"is not in {directory}: copy it there" if any(map(os.path.isfile, there)) else "no such file"
        raise BadDirectory(f"@{path}: {where}")
    try:
        with open_file(directory, os.path.relpath(inside[0], directory)) as file:
            data = file.read(MAX_IMAGE + 1)
    except OSError as error:
        raise BadDirectory(f"@{path}: {error.strerror}") from None
    if len(data) > MAX_IMAGE:
        raise BadDirectory(f"@{path}: expected an image of at most {MAX_IMAGE >> 20} MiB")
    if detect_mime_type(data) is None:
        raise BadDirectory(f"@{path}: expected an image: {KINDS}")
    return os.path.relpath(inside[0], directory)
