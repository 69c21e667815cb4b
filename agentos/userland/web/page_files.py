"""The files of the page: read, joined and compressed once, and kept by browsers for as long as none of them changes."""

import gzip
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .bundle import join, join_modules

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
    ".map": "application/json",
}
INDEX, ENTRY = "index.html", "app.js"
STYLES = ("theme.css", "layout.css", "parts.css")
FOREVER = "public, max-age=31536000, immutable"
TAKES_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")


@frozen
class File:
    media_type: str
    content: bytes
    compressed: bytes  # gzip

    @classmethod
    def of(cls, name: str, content: bytes) -> "File":
        return cls(TYPES[Path(name).suffix], content, gzip.compress(content, mtime=0))

    def answer(self, request: Request, cache_control: str) -> Response:
        headers = {"cache-control": cache_control, "vary": "accept-encoding"}
        if TAKES_GZIP.search(request.headers.get("accept-encoding", "")):
            return Response(
                self.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=self.media_type
            )
        return Response(self.content, headers=headers, media_type=self.media_type)


@frozen
class PageFiles:
    """``version`` is a digest of all files, and a part of their URLs. So what is under a URL never changes."""

    version: str
    files: Mapping[str, File]  # by path

    @classmethod
    def load(cls) -> "PageFiles":
        """Read all files. Blocks."""
        found = {str(path.relative_to(STATIC)): path for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES}
        texts = {name: path.read_text() for name, path in found.items()}
        version = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
        texts[INDEX] = texts[INDEX].replace("/static/", f"/static/{version}/")
        modules, modules_map = join_modules(texts, ENTRY)
        styles, styles_map = join([(name, texts[name]) for name in STYLES])
        texts["page.js"] = f"{modules}//# sourceMappingURL=page.js.map\n"
        texts["page.css"] = f"{styles}/*# sourceMappingURL=page.css.map */\n"
        texts |= {"page.js.map": modules_map, "page.css.map": styles_map}
        return cls(version, {name: File.of(name, text.encode()) for name, text in texts.items()})

    def show_index(self, request: Request) -> Response:
        return self.files[INDEX].answer(request, "no-store")

    async def send_file(self, request: Request) -> Response:
        """A file by its path, below the version or without it."""
        version, _, name = request.path_params["path"].partition("/")
        if version == self.version and name in self.files:
            return self.files[name].answer(request, FOREVER)
        file = self.files.get(request.path_params["path"])
        return file.answer(request, "no-cache") if file is not None else PlainTextResponse("no such file\n", 404)
