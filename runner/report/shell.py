"""The page around the report: markup, styles, tables. One file, no script, nothing from the network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

_STYLE = """
:root { --ink: #1f2933; --faint: #66727f; --line: #e4e7eb; --card: #f7f9fb; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 28px 60px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
section { scroll-margin-top: 30px; }
.lead { color: var(--faint); margin: 4px 0 18px; }
nav { position: sticky; top: 0; background: #fffffff2;
  border-bottom: 1px solid var(--line); padding: 9px 0; z-index: 1; }
nav a { color: var(--accent); text-decoration: none; margin-right: 18px; font-size: 14px; }
td a { color: var(--accent); text-decoration: none; }
nav a:hover, .files a:hover, td a:hover { text-decoration: underline; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin: 20px 0 8px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 23px; line-height: 1.25; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--faint); font-size: 13px; }
.card small { display: block; color: var(--faint); font-size: 12px; line-height: 1.35; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--faint); vertical-align: bottom; line-height: 1.3;
  border-bottom: 1px solid #cbd2d9; padding: 6px 8px; }
td { text-align: right; border-bottom: 1px solid var(--line); padding: 6px 8px; white-space: nowrap; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
table.wide { font-size: 12.5px; }
table.wide th, table.wide td { padding: 6px 5px; }
tbody tr:hover { background: var(--card); }
figure { margin: 8px 0 0; }
figure svg { width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--faint); font-size: 13px; margin-top: 6px; max-width: 95ch; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 8px; }
.files a { color: var(--accent); text-decoration: none; margin-right: 16px; }
.bad { color: #b42318; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; font-size: 13.5px; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
@media print { nav { display: none; } main { max-width: none; }
  h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def page(
    title: str, lead: str, sections: Sequence[tuple[str, str, str]], head: str = "", refresh: int = 0
) -> str:
    """The whole page.

    Args:
        sections: (anchor, heading, markup) in order; the navigation lists them.
        head: markup between the title and the first section.
        refresh: seconds after which a browser loads the page again; 0: never.
    """
    links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{markup}</section>'
        for anchor, heading, markup in sections
    )
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{again}<title>{escape(title)}</title>"
        '<link rel="icon" href="data:,">'  # or the browser asks a server for one
        f"<style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{lead}</p><nav>{links}</nav>{head}{body}</main></body></html>\n'
    )


def cards(entries: Sequence[tuple[str, str, str]]) -> str:
    """Key figures: (value, what it is, how it is defined)."""
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(note)}</small></div>'
            for value, name, note in entries
        )
        + "</div>"
    )


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text: Sequence[str] = (), raw_first: bool = False
) -> str:
    """A table. The first column and those named in `text` stand to the left, numbers to the right.

    Args:
        raw_first: the cells of the first column are markup already.
    """
    sides = [' class="text"' if name in text else "" for name in header]
    top = "".join(f"<th{side}>{escape(cell)}</th>" for cell, side in zip(header, sides, strict=True))
    lines = "".join(
        "<tr>"
        + "".join(
            f"<td{sides[i]}>{cell if raw_first and i == 0 else escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    wide = ' class="wide"' if len(header) > 12 else ""
    return (
        f'<div class="scroll"><table{wide}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def drawing(name: str, svg: str, caption: str) -> str:
    """A figure. Its ids get a prefix of their own: they must be unique in the page."""
    for attribute in ('id="', "url(#", 'href="#'):
        svg = svg.replace(attribute, f"{attribute}{name}-")
    label = escape(caption, quote=True)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f'<figure id="figure-{name}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def download(name: str, text: str, kind: str) -> str:
    """A link that holds its file in itself."""
    data = base64.b64encode(text.encode("utf-8", "backslashreplace")).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{escape(name)}</a>'
