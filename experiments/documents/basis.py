"""What the numbers of a table rest on: seeds, networks behind the attacks, trials behind a baseline's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.documents.cells import table

Document = Mapping[str, Any]

ATTACKS = {"xgboost": "XGBoost attack", "u-lira": "U-LiRA", "rmia": "RMIA", "klom": "KLoM"}
KINDS = ("full", "retrained", "on trial")
"""Of networks behind an attack; on trial: those that a row is about."""


def seeds_behind(row: Document) -> int:
    """As many as there are values of an error or accuracy; seconds may be of fewer."""
    measured = row.get("errors") or row["accuracy"]
    return len(next(iter(measured.values()))["values"])


def count(row: Document) -> str:
    """The seeds behind a row, for the column "n"."""
    return str(seeds_behind(row))


def timed_seeds(rows: Iterable[Document]) -> list[str]:
    """The sentence of :func:`timed_of`, for rows whose seconds a table shows."""
    return timed_of([(_values(row["seconds"]), row.get("timed of", seeds_behind(row))) for row in rows], "seeds")


def timed_steps(runs: Iterable[Document]) -> list[str]:
    """The same for chains of requests, each of which was timed step by step or not at all."""
    steps = [(_values(run["step seconds"]), sum(len(curve) - 1 for curve in run["curves"])) for run in runs]
    return timed_of(steps, "steps")


def timed_of(pairs: Sequence[tuple[int, int]], what: str) -> list[str]:
    """One sentence where fewer were timed than there are, for pairs (timed, all) of each row; none where all were."""
    fewer = [pair for pair in pairs if pair[0] < pair[1]]
    if not fewer:
        return []
    shown = " of ".join(span(numbers) for numbers in zip(*fewer, strict=True))
    where = "" if len(fewer) == len(pairs) else f" in {len(fewer)} of {len(pairs)} rows"
    return [f"Seconds: of the {what} that had the GPU for themselves ({shown}{where})."]


def _values(found: Document | None) -> int:
    return 0 if found is None else len(found["values"])


def span(values: Sequence[int]) -> str:
    """One number, or the least and the most."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def basis(document: Document, names: Sequence[str] = tuple(ATTACKS), timed: Iterable[Document] = ()) -> str:
    """Under a table: what n is, and how many networks are behind each attack's column.

    ``timed``: the rows whose seconds the table shows.
    """
    seeds = "n: seeds behind a row, mean ± standard deviation."
    attacks = attack_networks(document.get("attacks", {}), document.get("paper"), names)
    return " ".join([seeds, *timed_seeds(timed), *attacks])


def attack_networks(attacks: Document, paper: Document | None, names: Sequence[str] = tuple(ATTACKS)) -> list[str]:
    """One sentence an attack: networks of each kind it rests on, over all rows, and the paper's for its own.

    Retrained networks on trial are a control, for which they are divided: it is told apart.
    """
    said = []
    for name in names:
        found = {row: about[name]["rests on"] for row, about in attacks.get("methods", {}).items() if name in about}
        control = found.pop("retrained", None)
        if found:
            shown = networks(list(found.values()))
            known = (paper or {}).get("attack networks") if name == "xgboost" else None
            notes = [] if known is None else [f"the paper: {networks([known])}"]
            if control is not None and networks([control]) != shown:
                notes.append(f"in the row of retraining {networks([control])}")
            aside = f" ({'; '.join(notes)})" if notes else ""
            said.append(f"{ATTACKS[name]}: {shown} networks{aside}.")
    return said


def networks(found: Sequence[Mapping[str, int]]) -> str:
    """As "5 full + 5 retrained + 1 to 5 on trial"."""
    kinds = [kind for kind in KINDS if kind in found[0]]
    return " + ".join(f"{span([one[kind] for one in found])} {kind}" for kind in kinds)


def tuning(found: Document, methods: Document) -> str:
    """How every baseline came to its settings, from a document's "tuning" and its rows."""
    if not found.get("methods"):
        return "No baseline was tuned yet."
    rows = []
    for method, about in found["methods"].items():
        best = about["trials"][about["chosen trial"] - 1]
        row = methods.get(method, {})
        chosen = settings(about["chosen"]) + ("; other seeds differ" if "config by seed" in row else "")
        errors = f"{best['forgotten']:.2f} of {best['target']:.2f}"
        title = row.get("title", method)
        made = f"{len(about['trials'])}, {about['ended']}"
        rows.append([title, chosen, made, str(about["chosen trial"]), errors, f"{best['score']:.2f}"])
    columns = ["baseline", "settings taken", "trials, ended by", "trial taken", "its forget error of target", "score"]
    most = f"Tuning, on the validation half of seed {found['seed']}, {found['trials at most']} trials at most:"
    return f"{most}\n\n{table(columns, rows)}"


def settings(config: Document) -> str:
    """As `lr 0.01, norm frozen`."""
    shown = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in config.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
