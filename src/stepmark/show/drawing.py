"""How plots are drawn, by matplotlib; each kind in a module of its own (`drawing_…`)."""

from __future__ import annotations

import io
import warnings
from typing import assert_never

from stepmark.errors import MissingExtraError
from stepmark.show.drawing_bars import draw_bars
from stepmark.show.drawing_bins import draw_histogram, draw_reliability
from stepmark.show.drawing_heat import draw_heat
from stepmark.show.drawing_lines import draw_lines
from stepmark.show.plot_words import words
from stepmark.show.plots import Bars, Heat, Histogram, Lines, Plot, Reliability
from stepmark.show.sketch import STYLE, WIDTH, Sketch, shown
from stepmark.show.vector import cleaned


def drawn(plot: Plot) -> str:
    """See `stepmark.show.plots.svg`."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            'plots need matplotlib, which is not installed: pip install "stepmark[evaluate]"'
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A script that the measuring font lacks is drawn by the browser's fonts.
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph")
        warnings.filterwarnings("ignore", message=r"(?s).*constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH / 72, 250 / 72), layout="constrained")
        sketch = Sketch(figure=figure)
        match plot:
            case Lines():
                draw_lines(plot, sketch)
            case Bars():
                draw_bars(plot, sketch)
            case Reliability():
                draw_reliability(plot, sketch)
            case Heat():
                draw_heat(plot, sketch)
            case Histogram():
                draw_histogram(plot, sketch)
            case _:
                assert_never(plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return cleaned(file.getvalue(), sentence=shown(words(plot)), hovers=sketch.hovers)
