"""How objects show themselves in notebooks, and times in words."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[object]], heading: str = "") -> str:
    """Rows of cells as an HTML table, below a heading; whatever they hold is escaped.

    >>> table([("n", 3)], "a < b")
    '<p>a &lt; b</p><table><tr><td>n</td><td>3</td></tr></table>'
    """
    lines = []
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>")
    above = f"<p>{html.escape(heading)}</p>" if heading else ""
    return f"{above}<table>{''.join(lines)}</table>"


def time_left(seconds: float) -> str:
    """The time that is left, where it is worth a word.

    >>> time_left(0.2), time_left(90), time_left(7200)
    ('', ', 90 s left', ', 120 min left')
    """
    if seconds < 1:
        return ""
    if seconds < 120:
        return f", {seconds:.0f} s left"
    return f", {seconds / 60:.0f} min left"
