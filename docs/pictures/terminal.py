#!/usr/bin/env python3
"""Draws what a terminal shows as an SVG, from plain text.

    tidegate top --once > top.txt
    python3 docs/pictures/terminal.py "tidegate top" top.txt top.svg

`docs/pictures/make.py` draws every screen of the documents, docs/pictures/*.screen.txt, in this way. Each line of text is
drawn to a fixed width, so the columns stand in line with any font. The same text gives the same bytes.
"""

import sys
from html import escape
from pathlib import Path

CELL, LINE, EDGE, BAR = 8.4, 18, 14, 30
FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def draw(title, text):
    """The SVG of a screen: its own dark background, so it looks the same on a light and on a dark page."""
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
    columns = max(80, max(len(line) for line in lines))
    width = round(columns * CELL + 2 * EDGE)
    height = BAR + len(lines) * LINE + EDGE
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1b2430"/>',
        f'<path d="M0 {BAR - 6}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8v{BAR - 14}z" fill="#2c3848"/>',
        f'<text x="{width / 2:g}" y="16" fill="#aab6c4" font-family="sans-serif" font-size="12" text-anchor="middle">{escape(title)}</text>',
        f'<g fill="#dfe6ee" font-family="{FONT}" font-size="14" xml:space="preserve">',
    ]
    for number, line in enumerate(lines):
        y = BAR + number * LINE + 13
        # A run of text after a gap starts at its own column, so a wide font moves no column after it.
        for start, run in runs(line):
            x = EDGE + start * CELL
            length = len(run) * CELL
            out.append(
                f'<text x="{x:g}" y="{y}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs" '
                f'xml:space="preserve">{escape(run)}</text>'
            )
    out += ["</g>", "</svg>", ""]
    return "\n".join(out)


def runs(line):
    """The parts of a line that two spaces or more separate, each with its column."""
    start = None
    for column in range(len(line) + 1):
        gap = line[column : column + 2] in ("", " ", "  ")
        if start is None and not gap and line[column] != " ":
            start = column
        elif start is not None and gap:
            yield start, line[start:column]
            start = None


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: terminal.py TITLE TEXT SVG")
    Path(sys.argv[3]).write_text(draw(sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8")), encoding="utf-8")
