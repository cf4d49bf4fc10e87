"""What eigendecompositions cost, and what other ways to the same projector cost and how far they are from it.

    unweave bench eigen --device cuda

G is the Gram of rows with a falling spectrum, G_r what is left after a hundredth of the rows is taken out (500 of
50,000), γ = 0.9. Seconds of each way to the core of G_r, and ‖P − P_exact‖₂. The power law through the seconds of eigh
is extended to d = 50,000, which is an extrapolation, not a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import bases
from benchmarks.options import Document, Options, document
from benchmarks.power import power_law
from benchmarks.timing import summed_up, timed

SIZES = (1024, 2048, 4096, 8192, 16384)
CPU_SIZES = (256, 512, 1024, 2048)
QUICK_SIZES = (48, 96, 192)
WAYS_UP_TO = {"cuda": 8192, "cpu": 512}
"""The other ways are tried up to this size; they only tell how they compare."""
BATCHED_UP_TO = 2048
"""Up to here four layers of one size are also decomposed in one call."""
EXTRAPOLATED = 50_000
GAMMA = 0.9
FALL = 0.75
"""Row i's deviation along direction i falls as (i + 1)^−FALL."""


def rows_like(d: int, count: int, device: str, seed: int) -> Tensor:
    """Float64 rows [count, d] with a falling spectrum, turned by four reflections so that no axis is special."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.randn(count, d, dtype=torch.float64, device=device, generator=generator)
    rows *= torch.arange(1, d + 1, device=device, dtype=torch.float64) ** -FALL
    for _ in range(4):
        v = torch.randn(d, dtype=torch.float64, device=device, generator=generator)
        rows -= 2 * torch.outer(rows @ (v / v.norm()), v / v.norm())
    return rows


def run(options: Options) -> Document:
    """One entry a size, the power laws, and the extrapolation."""
    began = time.perf_counter()
    sizes = QUICK_SIZES if options.quick else CPU_SIZES if options.device == "cpu" else SIZES
    count = 2_000 if options.quick or options.device == "cpu" else 50_000
    problem = {"rows": count, "taken out": count // 100, "gamma": GAMMA, "fall of the spectrum": FALL}
    entries: list[dict[str, Any]] = []
    for d in sizes:
        entries.append(measure(d, count, options))
        print(_line(entries[-1]), flush=True)
        options.keep(document("eigen", options, began, problem=problem, sizes=entries))
    laws = {}
    for way in ("eigh", "eigvalsh"):
        law = power_law([entry["d"] for entry in entries][-3:], [entry[way]["median"] for entry in entries][-3:])
        laws[way] = law.as_dict() | {f"extrapolated seconds at d = {EXTRAPOLATED}": law(EXTRAPOLATED)}
    return document("eigen", options, began, problem=problem, sizes=entries, laws=laws)


def measure(d: int, count: int, options: Options) -> dict[str, Any]:
    """One size: eigh and eigvalsh, and every other way with its distance from the exact projector."""
    device = options.device
    rows = rows_like(d, count, device, options.seed)
    gram = rows.mT @ rows
    gone = rows[: count // 100]
    retained = gram - gone.mT @ gone
    del rows
    (values, vectors), taken = timed(lambda: torch.linalg.eigh(retained), device, options.repeats)
    values, vectors = values.flip(0), vectors.flip(1)
    only, alone = timed(lambda: torch.linalg.eigvalsh(retained), device, options.repeats)
    k = bases.rank_for(only, GAMMA)
    gap = float((values[k - 1] - values[k]) / values[0])
    entry = {
        "d": d,
        "k": k,
        "eigh": summed_up(taken),
        "eigvalsh": summed_up(alone),
        "relative gap at the cut": gap,
    }
    if d <= BATCHED_UP_TO:
        four = torch.stack([retained] * 4)
        _, taken = timed(lambda: torch.linalg.eigh(four), device, options.repeats)
        entry["four of one size, batched"] = summed_up(taken)
    if d <= WAYS_UP_TO[torch.device(device).type]:
        entry["ways"] = _ways(gram, retained, values, vectors[:, :k], options)
    return entry


def _ways(gram: Tensor, retained: Tensor, values: Tensor, exact: Tensor, options: Options) -> dict[str, Any]:
    k, d = exact.shape[1], len(gram)
    _, before = bases.leading(gram)
    turned = bases.in_basis(retained, before)
    cut = float((values[k - 1] + values[k]) / 2)
    window = max(2, d // 16)
    ways: dict[str, Callable[[], Tensor]] = {
        "the basis of before": lambda: before[:, :k].clone(),
        "subspace iteration, 1 step": lambda: bases.subspace_iteration(retained, before[:, :k], 1),
        "subspace iteration, 4 steps": lambda: bases.subspace_iteration(retained, before[:, :k], 4),
        "perturbation, 1 step": lambda: bases.perturbed(bases.in_basis(retained, before), before, k, 1),
        "perturbation, 4 steps": lambda: bases.perturbed(bases.in_basis(retained, before), before, k, 4),
        f"eigh within {2 * window} directions at the cut": lambda: bases.window_turned(
            bases.in_basis(retained, before), before, k, window
        )[0][:, :k],
        "the same, then perturbation, 1 step": lambda: bases.both(retained, before, k, window, 1),
        "the same, then perturbation, 4 steps": lambda: bases.both(retained, before, k, window, 4),
    }
    found: dict[str, Any] = {"off-diagonal share of UᵀGU": bases.off_diagonal(turned)}
    for name, work in ways.items():
        basis, taken = timed(work, options.device, options.repeats)
        found[name] = summed_up(taken) | {"distance": _or_none(basis, exact)}
    found |= _from_scratch(retained, exact, cut, options)
    return found


def _from_scratch(retained: Tensor, exact: Tensor, cut: float, options: Options) -> dict[str, Any]:
    """The ways that know nothing of the basis of before."""
    k, d = exact.shape[1], len(retained)
    found: dict[str, Any] = {}
    steps = 40
    projector, taken = timed(lambda: bases.sign_projector(retained, cut, steps), options.device, options.repeats)
    gap = float(torch.linalg.eigvalsh(projector - exact @ exact.mT).abs().max())
    found[f"sign function, {steps} steps"] = summed_up(taken) | {"distance": gap}
    _, taken = timed(lambda: bases.complement(exact), options.device, options.repeats)
    found["the complement of a known core, by QR"] = summed_up(taken) | {"distance": None}
    if 3 * k > d:
        found["lobpcg"] = {"left out": f"it needs 3 k <= d; here k = {k}, d = {d}"}
    else:
        generator = torch.Generator(options.device).manual_seed(0)
        start = torch.randn(d, k, dtype=retained.dtype, device=retained.device, generator=generator)
        (_, basis), taken = timed(lambda: torch.lobpcg(retained, X=start, niter=20), options.device, 1)
        found["lobpcg"] = summed_up(taken) | {"distance": _or_none(torch.linalg.qr(basis).Q, exact)}
    return found


def _or_none(basis: Tensor, exact: Tensor) -> float | None:
    return bases.distance(basis, exact) if bool(torch.isfinite(basis).all()) else None


def _line(entry: dict[str, Any]) -> str:
    return (
        f"d = {entry['d']}: eigh {entry['eigh']['median']:.4f} s, eigvalsh {entry['eigvalsh']['median']:.4f} s, "
        f"k = {entry['k']}"
    )


def table(result: Document) -> str:
    """For a screen: the sizes, the ways at the largest size they were tried at, and the extrapolation."""
    lines = [_line(entry) for entry in result["sizes"]]
    tried = [entry for entry in result["sizes"] if "ways" in entry]
    if tried:
        lines.append(f"other ways at d = {tried[-1]['d']}:")
        for name, row in tried[-1]["ways"].items():
            if not isinstance(row, dict):
                lines.append(f"  {name}: {row:.2e}")
            elif "left out" in row:
                lines.append(f"  {name}: left out, {row['left out']}")
            else:
                far = "" if row["distance"] is None else f", distance {row['distance']:.1e}"
                lines.append(f"  {name}: {row['median']:.4f} s{far}")
    for way, law in result["laws"].items():
        key = f"extrapolated seconds at d = {EXTRAPOLATED}"
        lines.append(
            f"{way}: seconds grow as d^{law['exponent']:.2f}; extrapolated to {EXTRAPOLATED}: {law[key]:.0f} s"
        )
    return "\n".join(lines)
