"""The table of the security demo as an SVG picture, for the README."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

ROW_HEIGHT, CHARACTER_WIDTH, MARGIN = 22, 8.4, 20  # pixels; the width is of a monospaced letter of 14 pixels
COLUMNS = (0, 39, 60, 83)  # characters from the left
WIDTH = 106  # characters
BACKGROUND, TEXT, DIM, RED, GREEN = "#0d1117", "#e6edf3", "#8b949e", "#ff7b72", "#56d364"

Row = tuple[str, str, str, str]  # the attempt, its result without a jail, in one, and what stopped it


def draw_table(header: Row, rows: Sequence[Row], verdict: str) -> str:
    """The picture's text."""
    lines = [draw_row(0, header, (DIM, DIM, DIM, DIM))]
    for number, row in enumerate(rows, 1):
        colours = (TEXT, *(RED if cell.startswith("DONE") else GREEN for cell in row[1:3]), DIM)
        lines.append(draw_row(number, row, colours))
    lines.append(draw_text(len(rows) + 2, 0, verdict, TEXT, "bold"))
    width, height = WIDTH * CHARACTER_WIDTH + 2 * MARGIN, (len(rows) + 3) * ROW_HEIGHT + 2 * MARGIN
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(verdict)}</title>",
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
            '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14">',
            *lines,
            "</g>",
            "</svg>\n",
        )
    )


def draw_row(number: int, row: Row, colours: Sequence[str]) -> str:
    cells = zip(COLUMNS, row, colours, strict=True)
    return "\n".join(draw_text(number, column, text, colour) for column, text, colour in cells)


def draw_text(row: int, column: int, text: str, colour: str, weight: str = "normal") -> str:
    x, y = MARGIN + column * CHARACTER_WIDTH, MARGIN + (row + 0.7) * ROW_HEIGHT
    length = f"{len(text) * CHARACTER_WIDTH:g}"  # whatever font is there, the columns stay
    return (
        f'<text x="{x:g}" y="{y:g}" textLength="{length}" fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
    )
