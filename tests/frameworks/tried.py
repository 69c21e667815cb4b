"""The table of docs/reference/coding-agents.md, whose rows `make agents` writes as it tries the programs."""

import json
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from agentos.presets import read_preset


def version_of(name: str, code: Path) -> str:
    """The version of a preset's program that is installed in ``code``, by npm or in a virtual environment."""
    package = read_preset(name).install.split()[-1]
    manifest = code / "node_modules" / package / "package.json"
    if manifest.exists():
        return str(json.loads(manifest.read_text())["version"])
    [found] = distributions(name=package, path=[str(place) for place in code.glob("lib/python3*/site-packages")])
    return found.version


def write_row(page: str, name: str, version: str, verdicts: Sequence[str]) -> str:
    """The page with the row of a preset written anew, but for its last cell, which is written by hand."""
    lines = page.splitlines(keepends=True)
    [at] = [number for number, line in enumerate(lines) if line.startswith(f"| `{name}` |")]
    remark = lines[at].rsplit("|", 2)[1]
    title = read_preset(name).about.partition(",")[0]
    lines[at] = f"| {' | '.join([f'`{name}`', f'{title} {version}', *verdicts])} |{remark}|\n"
    return "".join(lines)
