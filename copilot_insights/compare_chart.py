"""A comparison as a forest plot: what changed, and how sure that is."""

import polars as pl

from copilot_insights.charts import (
    BLUE,
    GREY,
    SOFT,
    Figure,
    blank,
    label,
    labels,
    nothing,
    rows_high,
)


def difference(frame: pl.DataFrame, names: tuple[str, str]) -> Figure:
    """Of `compare.compare`: each measure's change from the first set to the second with its
    interval; filled where a difference is shown.
    """
    known = frame.drop_nulls(["change", "low", "high"]).reverse()
    figure = blank(f"{label(names[1])} against {label(names[0])}", height=rows_high(known.height))
    if not known.height:
        return nothing(figure, "Too few sessions: nothing can be concluded.")
    for shown, name, color, symbol in (
        (False, "no difference shown", GREY, "circle-open"),
        (True, "differs", BLUE, "circle"),
    ):
        part = known.filter(pl.col("shown") == shown)
        if not part.height:
            continue
        change, low, high = (part[end].to_numpy() * 100 for end in ("change", "low", "high"))
        figure.add_scatter(
            x=change.tolist(), y=labels(part["measure"]), mode="markers", name=name,
            marker={"color": color, "symbol": symbol, "size": 9},
            error_x={"type": "data", "symmetric": False, "array": (high - change).tolist(),
                     "arrayminus": (change - low).tolist(), "color": color, "thickness": 1.5},
            hovertemplate="%{y}: %{x:+.1f}<extra></extra>",
        )  # fmt: skip
    figure.add_vline(x=0, line_color=SOFT, line_width=1)
    order = {"categoryorder": "array", "categoryarray": labels(known["measure"])}
    return figure.update_layout(
        xaxis={"title": {"text": "change, % (of shares: percentage points)"}}, yaxis=order
    )
