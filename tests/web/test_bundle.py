"""The page's modules joined into one file."""

import json

import pytest

from agentos.userland.web.bundle import BundleError, join_modules, sort_modules
from agentos.userland.web.page_files import STATIC

SIGNALS = "export const one = 1;\nexport async function wait() {}\n"
FEED = 'import { one } from "./signals.js";\nexport class Feed {}\n'
APP = 'import "./core/feed.js";\nimport { one as first,\n  wait } from "./core/signals.js";\nfirst;\n'
SOURCES = {"app.js": APP, "core/feed.js": FEED, "core/signals.js": SIGNALS, "unused.js": ""}


def test_a_module_stands_after_those_that_it_imports() -> None:
    assert sort_modules(SOURCES, "app.js") == ["core/signals.js", "core/feed.js", "app.js"]


def test_imports_and_exports_become_values_and_lines_stay_lines() -> None:
    text, _ = join_modules(SOURCES, "app.js")

    assert text.splitlines() == [
        "export const modules = {};",
        'modules["core/signals.js"] = (() => {',
        "const one = 1;",
        "async function wait() {}",
        "return { one, wait };",
        "})();",
        'modules["core/feed.js"] = (() => {',
        'const { one } = modules["core/signals.js"];',
        "class Feed {}",
        "return { Feed };",
        "})();",
        'modules["app.js"] = (() => {',
        "",
        "const { one: first,",
        '  wait } = modules["core/signals.js"];',
        "first;",
        "return {  };",
        "})();",
    ]


def test_the_source_map_leads_to_the_lines_of_the_pages_modules() -> None:
    sources = {str(path.relative_to(STATIC)): path.read_text() for path in STATIC.rglob("*.js")}

    text, source_map = join_modules(sources, "app.js")

    lines, sections = text.splitlines(), json.loads(source_map)["sections"]
    assert {section["map"]["sources"][0] for section in sections} == set(sources) - {"theme.js"}
    for section in sections:
        (name,) = section["map"]["sources"]
        before = sources[name].splitlines()
        assert section["map"]["mappings"].split(";") == ["AAAA", *["AACA"] * (len(before) - 1)]
        at = section["offset"]["line"]
        for line, joined in zip(before, lines[at : at + len(before)], strict=True):
            assert line.startswith("import ") or joined == line.removeprefix("export "), name


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ('import * as all from "./core/feed.js";\n', "app.js: `import * as all"),
        ("const x = 1;\nexport { x };\n", "app.js: `export { x };`"),
        ('import { x } from "./gone.js";\n', "app.js imports gone.js, which doesn't exist"),
        ('import { x } from "./app.js";\n', "app.js -> app.js"),
    ],
)
def test_what_cant_be_joined_is_refused(source: str, error: str) -> None:
    with pytest.raises(BundleError, match=error.replace("*", r"\*")):
        join_modules({**SOURCES, "app.js": source}, "app.js")
