"""Tables of our pages, each made from the results files by a function that ``docs.figures`` calls by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.hands_free import AUTO, MEAN, RELATIVE, UPGRAD
from benchmarks.report import table

_METHODS = (AUTO, MEAN, RELATIVE, UPGRAD)
_HEAD = ["problem, passes", "auto, nothing tuned", "Adam on the mean", "Adam, relative losses", "UPGrad"]

_HELD = ("parameters", "optimizer", "previous", "rows")  # by a rank of a split model

Row = dict[str, str]
Sections = Mapping[str, Mapping[str, Any]]


def auto_and_adam(sections: Sections) -> str:
    """Return the losses of auto and its rivals at the end, one row per problem."""
    return table(_HEAD, [[problem, *_losses(sides)] for problem, sides in _sides(sections).items()])


def auto_and_adam_in_full(sections: Sections) -> str:
    """Return the same with the ratios at every budget, and the stationarity."""
    head = [*_HEAD, "auto / Adam at 1/4, 1/2, the end", "stationarity: auto", "Adam on the mean"]
    lines = []
    for problem, sides in _sides(sections).items():
        auto, mean = sides[AUTO], sides[MEAN]
        ratios = [float(auto[name]) / float(mean[name]) for name in ("loss 1/4", "loss 1/2", "loss")]
        shown = ", ".join(f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}" for ratio in ratios)
        lines.append([problem, *_losses(sides), shown, auto["stationarity"], mean["stationarity"]])
    return table(head, lines)


def picture(sections: Sections) -> str:
    """Return where the curves of the README's picture end."""
    section = sections["picture"]
    return table(["at equal passes", *section["columns"][1:]], section["rows"])


def scoreboard(sections: Sections) -> str:
    """Return the scoreboard over all problems, the best mean rank at equal seconds first."""
    section = sections["board"]
    return table(section["columns"], section["rows"])


def scoreboard_by_problem(sections: Sections) -> str:
    """Return auto, Adam on the mean loss and the best method on every problem of the scoreboard."""
    section = sections["board by problem"]
    return table(section["columns"], section["rows"])


def forced_rates(sections: Sections) -> str:
    """Return which seeds have trained with learning rates that are too large or too small."""
    section = sections["forced"]
    chosen = [section["columns"].index(name) for name in ("method", "lr", "guard", "trained")]
    chosen.append(next(k for k, name in enumerate(section["columns"]) if name.startswith("larger loss")))
    head = ["method", "learning rate", "safeguard", "trained", "larger loss, median (lowest-highest)"]
    return table(head, [[row[k] for k in chosen] for row in section["rows"]])


def known_fronts(sections: Sections) -> str:
    """Return the rows of the benchmark of fronts on problems whose front is known: those with a distance to it."""
    columns = ("problem", "method", "seeds", "points", "on front", "hypervolume", "passes")
    return _part(sections["fronts"], columns, lambda row: row["distance"] != "")


def data_fronts(sections: Sections) -> str:
    """Return the rows of the benchmark of fronts on data."""
    columns = ("problem", "method", "seeds", "points", "hypervolume", "published", "passes", "CPU seconds")
    return _part(sections["fronts"], columns, lambda row: row["distance"] == "")


def moves(sections: Sections) -> str:
    """Return the benchmark of ``navigate``."""
    return _part(sections["moves"], sections["moves"]["columns"])


def steps_and_torchjd(sections: Sections) -> str:
    """Return what steps cost, relative to TorchJD's, with compiled steps of the small model."""
    sides = ("STIMULUS inner step", "SMGD, all rows", "SMGD, reweigh=30, sketched Gramian")

    def chosen(row: Row) -> bool:
        return row["side"].startswith(sides) and (row["engine"] == "compiled") == row["case"].startswith("MLP")

    return _part(sections["kept_weights"], ("case", "side", "engine", "/ TorchJD", "bar", "met"), chosen)


def steps_and_weighted_sum(sections: Sections) -> str:
    """Return what steps cost, relative to the bare weighted sum, one column per kind of step."""
    found: dict[str, Row] = {}
    for row in _rows(sections["kept_weights"]):
        engine = row["engine"].partition(":")[0]
        if engine in ("auto", "compiled") and not row["side"].startswith("scalarisation"):
            found.setdefault(f"{row['case']}, {engine}", {})[row["side"]] = row["/ weighted sum"]
    return _pivot("/ weighted sum", found)


def amortised(sections: Sections) -> str:
    """Return the quality of runs whose weights are solved for at every step or when due."""
    columns = ("problem", "S", "passes", "method", "weights", "steps", "solves", "loss", "stationarity", "met")
    return _part(sections["amortised"], columns)


def memory_and_torchjd(sections: Sections) -> str:
    """Return the peak memory of a step on the two image models, one column per side."""
    found: dict[str, Row] = {}
    for row in _rows(sections["memory"]):
        if not row["case"].startswith("MLP"):
            found.setdefault(f"{row['case']}, S = {row['S']}", {})[row["side"]] = row["peak above it"]
    return _pivot("case", found)


def speed_ups(sections: Sections) -> str:
    """Return how much faster two ranks are than one."""
    between = ", speed-up of two ranks: "
    lines = []
    for row in _rows(sections["distributed"]):
        way, found, ratio = row["what"].partition(between)
        if found:
            lines.append([row["case"], way, ratio, row["model"].removeprefix("at most "), row["measured"]])
    return table(["case", "step", "speed-up", "possible", "time"], lines)


def split_bytes(sections: Sections) -> str:
    """Return the bytes of a step on split models, and what a rank holds, one row per kind of step and number of ranks.

    What is held is in units of P numbers.
    """
    head = ["step", "R", "bytes, counted", "bytes, model", "parameters", "Adam", "x_{t-1}", "rows"]
    found: dict[tuple[str, str], Row] = {}
    for row in _rows(sections["split_models"]):
        if row["case"].startswith("MLP"):
            way, _, what = row["what"].rpartition(", ")
            values = found.setdefault((way, row["ranks"]), {})
            values |= {what: row["measured"], f"{what}, model": row["model"]}
    kinds = ("bytes per step", "bytes per step, model", *(f"{what} held" for what in _HELD))
    return table(head, [[way, ranks, *(values[kind] for kind in kinds)] for (way, ranks), values in found.items()])


def split_memory(sections: Sections) -> str:
    """Return the memory of a process on split models, beside that of plain FSDP2 training, in units of P numbers."""
    head = ["step", "R", "plain, held", "plain, peak", "held", "peak", "peak above plain", "the same, times R"]
    found: dict[str, str] = {}
    for row in _rows(sections["split_models"]):
        if not row["case"].startswith("MLP"):
            found[f"{row['what']}, {row['ranks']}"] = row["measured"]
    lines = []
    for way in ("all rows", "kept"):
        for ranks in (1, 2, 4):
            names = ("plain, held", "plain, peak", f"{way}, held", f"{way}, peak", f"{way}, peak above plain")
            values = [found[f"{name}, {ranks}"] for name in names]
            lines.append([way, ranks, *values, f"{float(values[-1]) * ranks:.2f}"])
    return table(head, lines)


def solver_and_torchjd(sections: Sections) -> str:
    """Return time and accuracy of min-norm weights."""
    columns = ("S", "MinNorm, microseconds", "TorchJD / MinNorm", "excess, ours", "excess, TorchJD")
    return _part(sections["solver"], columns, lambda row: row["S"] in ("2", "8", "40", "128", "512"))


def until_trained(sections: Sections) -> str:
    """Return what complete runs cost until MultiMNIST is trained."""
    columns = ("side", "setting chosen", "reached", "gradient evaluations", "seconds")
    return _part(sections["end_to_end"], columns)


def rankers(sections: Sections) -> str:
    """Return time, memory and quality of rankers."""
    return _part(sections["ranking"], sections["ranking"]["columns"][1:])


def paper_methods(sections: Sections) -> str:
    """Return where methods of the paper, and Adam on the mean loss, end in the runs of ``make reproduce``."""
    methods = ("SMGD", "MoCo", "STIMULUS", "STIMULUS-M", "Scalarisation, Adam")
    mean, stationarity = "Loss, mean over tasks", "Stationarity"
    wanted = [
        ("digits, mean loss", ("Two overlapping digits",), mean),
        ("MultiMNIST, lr 0.3, mean loss", ("MultiMNIST", "lr 0.3, published"), mean),
        ("river flow, lr 0.03, mean loss", ("River flow", "lr 0.03, published"), mean),
        ("river flow, lr 0.03, stationarity", ("River flow", "lr 0.03, published"), stationarity),
        ("ridge regression, distance to the Pareto set", ("Rates of convergence", "Distance D"), "D, last"),
    ]
    lines = []
    for title, headings, column in wanted:
        found = {next(iter(row.values())): _mean(row[column]) for row in _rows(_of_page(sections, *headings))}
        lines.append([title, *(found.get(method, "") for method in methods)])
    return table(["", *methods[:-1], "Adam on the mean"], lines)


def scaling_law(sections: Sections) -> str:
    """Return how many evaluations a method needs, divided by those of STIMULUS, by the size of the data."""
    title = "Gradient evaluations against"
    rows = _rows(_of_page(sections, title, "Gradient evaluations to"))
    full = {row["method"]: row for row in rows if row["L of"] == "sample"}
    base = full["STIMULUS"]
    sizes = [name for name in base if name.startswith("n = ")]
    found: dict[str, Row] = {"MGD": full["MGD"]}
    for row in _rows(_of_page(sections, title, "Scalarisation")):
        found.setdefault(row["method"], {})[f"n = {int(row['n']):,}"] = row["evaluations"]
    lines = [
        [method, *(f"{float(row[n]) / float(base[n]):.3g}" if row.get(n) else "" for n in sizes)]
        for method, row in found.items()
    ]
    return table(["evaluations / those of STIMULUS", *sizes], lines)


def fronts_covered(sections: Sections) -> str:
    """Return the part of each front that runs from many starts, or with many weights, cover."""
    found: dict[str, Row] = {}
    for row in _rows(_of_page(sections, "Which part of a Pareto front", "30 runs")):
        found.setdefault(row["problem"], {})[row["method"]] = f"{float(row['front covered']):.0%}"
    return _pivot("part of the front covered", found)


def guarded(sections: Sections) -> str:
    """Return the mean losses of MultiMNIST at lr 0.3 without and with the safeguard."""
    without, with_guard = (
        {row["Method"]: _mean(row["Loss, mean over tasks"]) for row in _rows(_of_page(sections, "MultiMNIST", heading))}
        for heading in ("lr 0.3, published", "lr 0.3, with the safeguard")
    )
    methods = [name for name in with_guard if name.startswith(("STIMULUS", "MoCo+"))]
    head = ["MultiMNIST, lr 0.3, mean loss", "published method", "with the safeguard"]
    return table(head, [[name, without[name], with_guard[name]] for name in methods])


def _rows(section: Mapping[str, Any]) -> Iterator[Row]:
    return (dict(zip(section["columns"], row, strict=True)) for row in section["rows"])


def _part(section: Mapping[str, Any], columns: Sequence[str], chosen: Callable[[Row], bool] = lambda row: True) -> str:
    return table(columns, [[row[name] for name in columns] for row in _rows(section) if chosen(row)])


def _pivot(corner: str, found: Mapping[str, Row]) -> str:
    """Return a table with one row per entry and one column per key of the entries."""
    columns = list(dict.fromkeys(name for row in found.values() for name in row))
    return table([corner, *columns], [[head, *(row.get(name, "") for name in columns)] for head, row in found.items()])


def _of_page(sections: Sections, *headings: str) -> Mapping[str, Any]:
    """Return the table of docs/reproduction.md below headings that begin with these words."""
    found = []
    for name, section in sections.items():
        page, *names = name.split(" > ")
        if page == "reproduction" and len(names) == len(headings):
            found += [section] if all(map(str.startswith, names, headings)) else []
    if len(found) != 1:
        raise LookupError(f"docs/reproduction.md has {len(found)} tables below {' > '.join(headings)}")
    return found[0]


def _mean(cell: str) -> str:
    """Return the first number of "mean ± deviation", with three digits."""
    return f"{float(cell.split(' ± ')[0].replace(',', '')):.3g}"


def _sides(sections: Sections) -> dict[str, dict[str, Row]]:
    """Return the rows of the judge by problem and method."""
    found: dict[str, dict[str, Row]] = {}
    for row in _rows(sections["hands_free"]):
        if row["method"] in _METHODS:
            found.setdefault(row["problem"], {})[row["method"]] = row
    return found


def _losses(sides: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [f"{float(sides[method]['loss']):.3g}" if method in sides else "" for method in _METHODS]
