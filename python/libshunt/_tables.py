# SPDX-License-Identifier: MIT
"""Tables of HTML, which notebooks show in the place of a repr."""

import html
from collections.abc import Iterable
from typing import Any


def table(rows: Iterable[Iterable[object]], heads: Iterable[str] = ()) -> str:
    def cells(tag: str, row: Iterable[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    head = list(heads)
    return "<table>" + (cells("th", head) if head else "") + "".join(cells("td", row) for row in rows) + "</table>"


class Values(dict[str, Any]):
    def _repr_html_(self) -> str:
        return table(self.items())
