#!/usr/bin/env python3
"""Renders a terminal's output (with its colours) as an SVG.

    script -qec 'tollgate check --user ann' /dev/null | scripts/render-terminal.py > picture.svg

A line that starts with "$ " is shown as a prompt. Only the codes that Tollgate prints are known.
"""
import html
import re
import sys

CELL, LINE, SIZE = 8.4, 21, 14
LEFT, TOP, BAR = 22, 20, 34
COLOURS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341"}
FOREGROUND, FAINT, PROMPT, BACKGROUND = "#d1d7e0", "#8b949e", "#79c0ff", "#0d1117"


def runs(line):
    """The line as (text, colour, is_bold)."""
    if line.startswith("$ "):
        return [("$", PROMPT, True), (line[1:], "#ffffff", False)]
    found, colour, bold = [], FOREGROUND, False
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if part.startswith("\x1b["):
            codes = part[2:-1].split(";")
            bold = "1" in codes
            colour = next((COLOURS[code] for code in codes if code in COLOURS), FOREGROUND)
        elif part:
            found.append((part, colour, bold))
    if len(found) == 1 and re.match(r"SCOPE\s+RULE\s", line):
        return [(line, FAINT, False)]
    return found


def main():
    text = sys.stdin.read().replace("\r", "").strip("\n")
    lines = [runs(line) for line in text.split("\n")]
    columns = max(sum(len(run[0]) for run in line) for line in lines)
    width = round(columns * CELL + 2 * LEFT)
    height = BAR + 2 * TOP + LINE * len(lines) - 6
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">')
    print("<title>tollgate check: an allowed request, and a refused request with the reason</title>")
    print(f'<rect width="{width}" height="{height}" rx="9" fill="{BACKGROUND}"/>')
    for place, colour in enumerate(["#ff5f57", "#febc2e", "#28c840"]):
        print(f'<circle cx="{LEFT + 20 * place}" cy="{BAR / 2 + 3}" r="6" fill="{colour}"/>')
    font = "ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
    print(f'<g font-family="{font}" font-size="{SIZE}">')
    for row, line in enumerate(lines):
        column, y = 0, BAR + TOP + LINE * row + 8
        for run, colour, bold in line:
            stripped = run.lstrip(" ")
            start = column + len(run) - len(stripped)
            column += len(run)
            stripped = stripped.rstrip(" ")
            if not stripped:
                continue
            weight = ' font-weight="bold"' if bold else ""
            # The length keeps columns aligned whatever font there is.
            length = f'textLength="{len(stripped) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
            x = LEFT + start * CELL
            # Browsers merge plain spaces, whatever xml:space says.
            shown = html.escape(stripped).replace(" ", "\u00a0")
            print(f'<text x="{x:.1f}" y="{y}" fill="{colour}"{weight} {length}>{shown}</text>')
    print("</g></svg>")


if __name__ == "__main__":
    main()
