"""Rows of `benchmarks.frontier` as markdown tables."""

from collections.abc import Sequence

from .frontier_rows import PLAIN, Row, find

_HEADINGS = (
    "program", "budget", "requested MB", "measured MB", "temp MB", "flops", "traffic",
    "roofline", "time", "plan s", "compile s", "compiles", "compile", "predicted",
    "error",
)  # fmt: skip
_NOTHING = "-"


def table(rows: Sequence[Row]) -> str:
    """The rows of one model as an aligned markdown table.

    Columns that no row has anything for are left out.
    """
    plain = find(rows, PLAIN)
    assert plain is not None
    columns = [
        column
        for column in zip(_HEADINGS, *(_cells(row, plain) for row in rows), strict=True)
        if set(column[1:]) != {_NOTHING}
    ]
    cells = list(zip(*columns, strict=True))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(cells[0], widths)]
    rules = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines.append("| " + " | ".join(rules) + " |")
    lines += [_line(row, widths) for row in cells[1:]]
    return "\n".join(lines)


def flops_legend(rows: Sequence[Row]) -> str:
    """Where the flops of these rows come from."""
    if any(row.flops is not None for row in rows):
        return (
            "flops: by XLA's cost analysis of the compiled program, and what it leaves "
            "out of loops that draw random words, over no remat"
        )
    return (
        "flops: counted on the traced or emitted program (XLA's own analysis is for "
        "CPUs alone, or leaves out library calls), over no remat"
    )


# Tables


def _cells(row: Row, plain: Row) -> tuple[str, ...]:
    measured = _megabytes(row.measured)
    if row.floor is not None:
        measured = f"floor {_megabytes(row.floor)}"
    return (
        row.program,
        row.budget or "-",
        _megabytes(row.requested),
        measured,
        _megabytes(row.temp),
        _number(row.overhead, ".3f"),
        _number(row.traffic, ".3f"),
        _number(row.roofline, ".3f"),
        _number(row.time_over(plain), ".3f"),
        _number(row.plan_seconds, ".1f"),
        _number(row.compile_seconds, ".1f"),
        str(row.compiles),
        _number(row.compile_ratio, ".2f"),
        _number(row.misprediction, "+.1%"),
        _number(row.error, ".2f"),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"


def _megabytes(size: int | None) -> str:
    return _number(None if size is None else size / 1e6, ".1f")


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)
