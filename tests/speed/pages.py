"""Figures on pages of the docs: tables in Markdown, the places where they stand, and pictures."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.speed.results import lined_up


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, its columns aligned."""
    lines = lined_up([head, *rows])
    lines.insert(1, ["-" * len(cell) for cell in lines[0]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replace_figures(page: Path, name: str, figures: str) -> None:
    """Put ``figures`` between the comments ``<!-- name -->`` and ``<!-- /name -->`` of a page."""
    place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- /{name} -->)", re.DOTALL)
    page.write_text(place.sub(lambda _: f"{figures}\n", page.read_text()))


@contextlib.contextmanager
def drawing(path: Path, panels: int, size: tuple[float, float], **options: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """A figure and its panels side by side, saved as SVG at the end; the same each time. ``size`` is in inches."""
    import matplotlib  # here: it takes a second, and only this needs it

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 8})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=size, layout="constrained", **options)
    try:
        yield figure, axes
        figure.savefig(path, metadata={"Date": None})
    finally:
        pyplot.close(figure)
