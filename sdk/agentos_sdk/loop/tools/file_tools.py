"""Tools for files: read_file, write_file, edit_file, list_files and search_files.

Files are read and written by READ and WRITE, so that rules hold and the audit log has them. In a jail directories are
listed and searched by this process itself: it sees only what is the agent's. Elsewhere see :mod:`.host_files`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

from agentos_sdk.clients.arguments import as_text, make_absolute
from agentos_sdk.loop.engine.effects import Call, Run, Work
from agentos_sdk.opcodes import Op

from . import search_program
from .host_files import as_texts, is_jailed, matches, read_below
from .search_program import files_below, shown_name
from .text_files import UTF_8, find_encoding, replace_text
from .tools import Context, Plan, Tool, ToolError, checked, parameters, shorten

T = TypeVar("T")

PART = 1 << 20  # bytes read at a time
MAX_FILE = 8 << 20  # bytes of a file that is edited or replaced
MAX_READ = 64 << 10  # bytes that one read_file returns
MAX_LISTED = 500  # names, and lines that match
SEARCH_SECONDS = 20.0  # some expressions take years for some lines
NO_UTF_8 = "read it with encoding base64"  # in READ's error for a file that isn't
PATH = ("string", "relative to the working directory")


def read_whole(path: str) -> Work[bytes | None]:
    """A file's content, None if there is no such file; raises :class:`ToolError`."""
    data = b""
    while True:
        fields = {"path": make_absolute(path), "offset": len(data), "limit": PART, "encoding": "base64"}
        reply = yield Call(Op.READ, fields)
        if reply.get("code") == "not_found":
            return None
        if not reply["success"]:
            raise ToolError(f"{reply['code']}: {reply['error']}")
        part = b64decode(reply["content"])
        data += part
        if not part or len(data) >= reply["size"]:
            return data
        if reply["size"] > MAX_FILE:
            raise ToolError(f"{path} has {reply['size']} bytes; at most {MAX_FILE >> 20} MiB can be changed by a tool")


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def write(path: str, content: str | bytes) -> Work[None]:
    """Replace a file's content at once; directories that are missing are made."""
    text, encoding = as_text(content, "utf-8")
    fields = {"path": make_absolute(path), "content": text, "encoding": encoding}
    reply = yield Call(Op.WRITE, fields)
    if reply.get("code") == "not_found" and os.path.dirname(path):
        yield from _run(os.makedirs, {"name": os.path.dirname(make_absolute(path)), "exist_ok": True})
        reply = yield Call(Op.WRITE, fields)
    if not reply["success"]:
        raise ToolError(f"{reply['code']}: {reply['error']}")


def _run(function: Callable[..., T], arguments: dict[str, Any]) -> Work[T]:
    """What a function that uses files returns; its failure is a :class:`ToolError`."""
    try:
        found: T = yield Run(function, arguments)
    except (OSError, ValueError) as error:
        raise ToolError(str(error)) from error
    return found


def plan_write(arguments: dict[str, Any]) -> Work[Plan]:
    path, content = arguments["path"], arguments["content"]
    before = yield from read_whole(path)
    data = UTF_8.encode(content)
    done = f"wrote {len(data)} bytes to {path}" + ("" if before is None else f", which had {len(before)}")
    return Plan(path, None if before is None else digest(before), digest(data), content, done)


def plan_edit(arguments: dict[str, Any]) -> Work[Plan]:
    path, old, new = arguments["path"], arguments["old_text"], arguments["new_text"]
    data = yield from read_whole(path)
    if data is None:
        raise ToolError(f"{path}: no such file; write_file makes one")
    encoding = find_encoding(data, path)
    text = encoding.decode(data)
    count = text.count(old) if old else 0
    _check_size(path, len(text) + count * (len(new) - len(old)))
    content, count = replace_text(path, text, old, new, bool(arguments.get("replace_all")))
    _check_size(path, len(content))
    changed = encoding.encode(content)
    as_content = content if encoding is UTF_8 else changed
    return Plan(path, digest(data), digest(changed), as_content, f"replaced {count} in {path}")


def _check_size(path: str, size: int) -> None:
    if size > MAX_FILE:
        raise ToolError(f"{path} would have {size} characters; at most {MAX_FILE >> 20} MiB can be written by a tool")


def apply_plan(plan: Plan) -> Work[str]:
    yield from write(plan.path, plan.content)
    return plan.done


def _change(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    raise AssertionError("a planned tool is done by its plan")
    yield


def _read(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    offset, limit = arguments.get("offset", 0), min(arguments.get("limit", MAX_READ), MAX_READ)
    fields = {"path": make_absolute(arguments["path"]), "offset": max(offset, 0), "limit": max(limit, 1)}
    reply = yield Call(Op.READ, fields)
    if not reply["success"] and NO_UTF_8 in reply["error"]:
        reply = yield from checked(Call(Op.READ, {**fields, "encoding": "base64"}))
        data = b64decode(reply["content"])
        encoding = find_encoding(data, arguments["path"])
        text = f"{data.decode(encoding.name, 'backslashreplace')}\n[{encoding.note}]"
    elif reply["success"]:
        text = str(reply["content"])
    else:
        raise ToolError(f"{reply['code']}: {reply['error']}")
    end = offset + limit
    more = f"\n[bytes {offset} to {end} of {reply['size']}; offset={end} continues]" if reply["size"] > end else ""
    return text + more


def _list(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    path, pattern = arguments.get("path", "."), arguments.get("pattern", "*")
    if is_jailed():
        return (yield from _run(list_files, {"path": path, "pattern": pattern}))
    read = yield from read_below(path, 1, pattern)
    sizes = {os.path.relpath(file.path, make_absolute(path)): file.size for file in read.files}
    sizes = {os.path.basename(path) if name == "." else name: size for name, size in sizes.items()}
    return _list_sizes(sizes, pattern) + read.note


def _search(context: Context, arguments: dict[str, Any], place: str) -> Work[str]:
    path, pattern = arguments.get("path", "."), arguments["pattern"]
    if is_jailed():
        return (yield from _run(search_files, {"path": path, "pattern": pattern}))
    read = yield from read_below(path)
    return (yield from _run(search_texts, {"texts": as_texts(read.files), "pattern": pattern})) + read.note


def list_files(path: str, pattern: str) -> str:
    """Names of files below a directory that match, with sizes."""
    if not os.path.isdir(path):
        raise ToolError(f"{path}: no such directory")
    return _list_sizes({os.path.relpath(file, path): os.lstat(file).st_size for file in files_below(path)}, pattern)


def _list_sizes(sizes: Mapping[str, int], pattern: str) -> str:
    """The names that match, with sizes."""
    matching = [name for name in sizes if matches(name, pattern)]
    return _limited([f"{shown_name(name)} ({sizes[name]} bytes)" for name in matching], "no file matches")


def search_files(path: str, pattern: str) -> str:
    """Lines of files that match, as ``name:line: text``; raises :class:`ToolError` after :data:`SEARCH_SECONDS`."""
    if not os.path.exists(path):
        raise ToolError(f"{path}: no such file or directory")
    return _search_lines({"path": path, "pattern": pattern})


def search_texts(texts: Sequence[tuple[str, str]], pattern: str) -> str:
    """As :func:`search_files`, of texts with their names."""
    return _search_lines({"texts": texts, "pattern": pattern})


def _search_lines(what: Mapping[str, Any]) -> str:
    argv = [sys.executable, "-I", "-S", search_program.__file__]
    request = json.dumps({**what, "most": MAX_LISTED}).encode()
    try:
        done = subprocess.run(argv, input=request, capture_output=True, timeout=SEARCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"pattern: the search was ended after {SEARCH_SECONDS:g} s: use a simpler expression, without repeated "
            "groups such as (a+)+, or search fewer files"
        ) from None
    if done.returncode != 0:
        raise ToolError(f"the search has failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ToolError(answer["error"])
    return _limited(answer["found"], "no line matches")


def _limited(found: list[str], nothing: str) -> str:
    more = f"\n[{len(found) - MAX_LISTED} more]" if len(found) > MAX_LISTED else ""
    return shorten("\n".join(found[:MAX_LISTED]) + more) if found else nothing


READ_FILE = Tool(
    "read_file",
    f"Read a text file, at most {MAX_READ >> 10} KiB of it from offset on.",
    parameters("path", path=PATH, offset=("integer", "bytes to skip"), limit=("integer", "bytes to read")),
    _read,
    "again",
    together=True,
)
WRITE_FILE = Tool(
    "write_file",
    "Write a text file; replaces its whole content if it exists.",
    parameters("path", "content", path=PATH, content=("string", "the whole content")),
    _change,
    "compare",
    plan_write,
)
EDIT_FILE = Tool(
    "edit_file",
    "Replace an exact piece of text in a file. It must occur once, unless replace_all is true.",
    parameters(
        *("path", "old_text", "new_text"),
        path=PATH,
        old_text=("string", "the text as it is in the file, with its spaces and line breaks"),
        new_text=("string", "what stands there instead"),
        replace_all=("boolean", "replace each occurrence"),
    ),
    _change,
    "compare",
    plan_edit,
)
LIST_FILES = Tool(
    "list_files",
    "List files below a directory.",
    parameters(path=PATH, pattern=("string", "such as *.py")),
    _list,
    "again",
    together=True,
)
SEARCH_FILES = Tool(
    "search_files",
    "Search the lines of files below a directory for a regular expression (Python's).",
    parameters("pattern", pattern=("string", "the expression"), path=PATH),
    _search,
    "again",
    together=True,
)
