"""Joins the page's modules, and its style sheets, into one file each: a browser asks the kernel twice, not forty times.

A module becomes a function that returns its exports; it stands after those that it imports. All lines stay whole, so a
simple source map leads a debugger back to the modules. What isn't a line of such a form is refused.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function) (\w+))", re.MULTILINE)
REFUSED = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class BundleError(Exception):
    """The modules can't be joined; the text says which and why."""


def join_modules(sources: Mapping[str, str], entry: str) -> tuple[str, str]:
    """The text of ``entry`` with all that it imports, and its source map. ``modules`` there are exports by path."""
    parts: list[tuple[str, str]] = [("", "export const modules = {};\n")]
    for name in sort_modules(sources, entry):
        exports = ", ".join(EXPORT.findall(sources[name]))
        body = EXPORT.sub("", IMPORT.sub(lambda found, name=name: _bind(name, found), sources[name]))  # type: ignore[misc]
        if refused := REFUSED.search(body):
            raise BundleError(f"{name}: `{refused[0]}`: write `import {{ … }} from` or `export const|class|function`")
        parts += [("", f'modules["{name}"] = (() => {{\n'), (name, body), ("", f"return {{ {exports} }};\n}})();\n")]
    return join(parts)


def sort_modules(sources: Mapping[str, str], entry: str) -> Sequence[str]:
    """The modules that ``entry`` needs, each after those that it imports."""
    found: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise BundleError(f"modules import each other: {' -> '.join((*path, name))}")
        if name not in sources:
            raise BundleError(f"{path[-1]} imports {name}, which doesn't exist")
        if name not in found:
            for _, target in IMPORT.findall(sources[name]):
                visit(_resolve(name, target), (*path, name))
            found[name] = None

    visit(entry, ())
    return list(found)


def join(parts: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Texts that end with a line break, joined, and the source map of those that have a name."""
    text, sections = "", list[object]()
    for name, part in parts:
        if name:
            lines = ";".join(["AAAA", *["AACA"] * (part.count("\n") - 1)])  # each is the line after the one before
            place = {"line": text.count("\n"), "column": 0}
            sections.append({"offset": place, "map": {"version": 3, "sources": [name], "names": [], "mappings": lines}})
        text += part
    return text, json.dumps({"version": 3, "sections": sections})


def _bind(name: str, found: re.Match[str]) -> str:
    names, target = found[1], found[2]
    if names is None:
        return ""
    return f'const {{{names.replace(" as ", ": ")}}} = modules["{_resolve(name, target)}"];'


def _resolve(name: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
