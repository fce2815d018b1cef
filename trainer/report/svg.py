"""Matplotlib figures as inline SVG: the same bytes for the same data, ids unique in the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import matplotlib
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

#: Okabe and Ito's palette, which stays distinct under the common colour-vision deficiencies.
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
INK, MUTED, RULE = "#1b2430", "#55606e", "#d9dee5"

_STYLE = {
    "svg.hashsalt": "harnessrl",
    "svg.fonttype": "none",  # text stays text: selectable, in the page's font
    "text.parse_math": False,  # a `$` in a task id is a dollar
    "font.sans-serif": ["DejaVu Sans"],  # for the layout alone
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
}


def draw(name: str, label: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> Markup:
    """Paint a figure of `size` (inches) and return it as an SVG element with ids ``name-...``.

    `label` is read out by screen readers. The global pyplot state is never touched.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        buffer = io.StringIO()
        # Without these the file would carry the date and matplotlib's version.
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=metadata)
    return Markup(_inline(buffer.getvalue(), name, label))


def _inline(svg: str, name: str, label: str) -> str:
    """The SVG element alone, with prefixed ids, and no size: the page decides the width."""
    root = re.search(r'<svg\b[^>]*(viewBox="[^"]+")[^>]*>', svg)
    if root is None:
        raise ValueError("matplotlib wrote no <svg> element with a viewBox")
    body = re.sub(r'(\sid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg[root.end() :])
    return f'<svg role="img" aria-label="{escape(label)}" {root[1]}>{body}'
