"""Figures on pages of the docs: the places where they stand, and pictures."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


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
