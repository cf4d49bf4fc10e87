"""Fit, a request and the request after it, against retraining, the plain version, the authors' code and other methods.

    unweave bench side-by-side --device cuda --cifar10 FOLDER [--tinyimagenet FOLDER] [--reference CHECKOUT]

Everything in one run, on the same weights and data, which lie on the device: median, least and most of the seconds by
the wall clock after a first time that does not count. ``request`` has the Grams on the device, ``request, Grams in main
memory`` has not; ``request, not captured`` takes its steps one kernel at a time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import nn

import unweave
from benchmarks.authors import run_authors
from benchmarks.cases import Case, cifar10_cases, demo, tinyimagenet_case, toy
from benchmarks.options import DEMO, Document, Options, document
from benchmarks.others import call_of, supplies
from benchmarks.plain import plain_forget, plain_grams
from benchmarks.timing import OverTimeError, at_most, summed_up, timed, wait
from experiments.datasets.images import error
from experiments.training.fast import train_fast
from unweave.baselines import BASELINES
from unweave.errors import ConfigError
from unweave.reading.rest import at_rest, fingerprint
from unweave.walking import captured

FIT_BATCH = {"cpu": 512, "cuda": 2048}
"""Samples a batch of the pass over the training set: a GPU is started seldom enough with large ones."""


def run(options: Options) -> Document:
    """One entry a network, and what was left out with the reason."""
    began = time.perf_counter()
    networks: dict[str, Any] = {}

    def so_far() -> Document:
        return document("side-by-side", options, began, networks=networks)

    for case in _cases(options):
        print(f"{case.name} ({case.pixels})", flush=True)
        comparison = Comparison(case, options, lambda: options.keep(so_far()))
        networks[case.name] = comparison.entry  # filled as it goes on
        comparison.run()
    return so_far()


def _cases(options: Options) -> list[Case]:
    if options.quick:
        return [toy(options.device)]
    wanted = options.wanted()
    cases = [demo(options.device)] if DEMO in wanted else []
    if {"allcnn", "smallvgg"} & set(wanted):
        cases += cifar10_cases(options.cifar10, options.device, options.epochs)
    if "resnet18" in wanted:
        cases.append(tinyimagenet_case(options.tinyimagenet, options.device, options.epochs))
    return [case for case in cases if case.name in wanted]


class Comparison:
    """All ways on one network."""

    def __init__(self, case: Case, options: Options, keep: Callable[[], None] = lambda: None) -> None:
        self.case, self.options, self.device, self.keep = case, options, options.device, keep
        self.rows: dict[str, Any] = {}
        self.left_out: dict[str, str] = {}
        self.val = case.val.batches()
        self.entry = self._about()

    def _about(self) -> dict[str, Any]:
        case = self.case
        return {
            "pixels": case.pixels,
            "training samples": len(case.train),
            "forget samples": len(case.forget),
            "validation samples": len(case.val),
            "task": case.config.task,
            "config": case.config.resolved().as_dict(),
            "papers config": case.papers.resolved().as_dict(),
            "epochs of training": case.epochs,
            "ways": self.rows,
            "left out": self.left_out,
        }

    def run(self) -> None:
        """Time every way, the other methods last: some of them take minutes."""
        case = self.case
        train = functools.partial(
            train_fast,
            case.build,
            seed=self.options.seed,
            epochs=case.epochs,
            padding=case.padding,
            batch_size=case.training_batch,
        )
        self.net = train(case.train)
        self.entry["original"] = self._errors(self.net)
        self._ours()
        retrained = self._time("retrain", lambda: train(case.retain), slow=True, warm=0)  # training was the warm-up
        self.rows["retrain"] |= self._errors(retrained)
        self._plain()
        self._authors(retrained)
        self._others()

    def _time(
        self, name: str, work: Callable[[], Any], *, slow: bool = False, warm: int = 1, limit: float | None = None
    ) -> Any:
        repeats = self.options.slow_repeats if slow else self.options.repeats
        made, taken = timed(work, self.device, repeats, warm, limit)
        self.rows[name] = summed_up(taken)
        row = self.rows[name]
        print(f"  {name}: {row['median']:.3f} s ({row['min']:.3f} to {row['max']:.3f})", flush=True)
        self.keep()
        return made

    def _in_time(self, name: str, work: Callable[[], Any], first: Callable[[], Any] = lambda: None) -> Any | None:
        """As ``_time``, for what may take too long, with what is to be run ``first``: then None, and it is left out."""
        try:
            with at_most(self.options.limit):
                first()
            return self._time(name, work, slow=True, warm=0, limit=self.options.limit)
        except OverTimeError as over:
            self.left_out[name] = str(over)
            print(f"  {name}: {over}", flush=True)
            wait(self.device)
            self.keep()
            return None

    def _errors(self, net: nn.Module) -> dict[str, float]:
        """In percent, on what speed must not cost: what was forgotten, retained, and never seen."""
        case = self.case
        sets = {"forget error": case.forget, "retained error": case.retain, "validation error": case.val}
        return {name: error(net, part) for name, part in sets.items()}

    # ------------------------------------------------------------------------------------------------------- ours

    def _ours(self) -> None:
        case, batches = self.case, self.case.train.batches(FIT_BATCH[torch.device(self.device).type])
        self._time("forward pass", lambda: _forward(self.net, batches, "ieee"))
        grams = self._time("fit", lambda: unweave.fit(self.net, batches, self.val))
        if self.device != "cpu":
            self._time("forward pass, TF32", lambda: _forward(self.net, batches, "tf32"))
            try:
                self._time("fit, TF32", lambda: unweave.fit(self.net, batches, self.val, tf32=True))
            except ConfigError as error:
                self.left_out["fit, TF32"] = str(error)
        here = grams.to(self.device)
        self._time("eigendecompositions", lambda: unweave.CoreSpace.from_grams(here, case.config.gamma))
        first = self._request("request", self.net, case.forget.batches(), here)
        again = (first.model, case.later.batches(), first.grams)
        self._request("request after it", *again, readout=False)
        if self.device != "cpu":
            other = self._request("request, Grams in main memory", self.net, case.forget.batches(), grams)
            with mock.patch.object(captured, "EAGER", 10**9):
                eager = self._request("request, not captured", self.net, case.forget.batches(), here)
            ends = {fingerprint(result.model) for result in (first, other, eager)}
            self.rows["request, not captured"]["same weights as the others"] = len(ends) == 1

    def _request(self, name: str, net: nn.Module, forget: Any, grams: Any, readout: bool = True) -> Any:
        config = self.case.config
        result = self._time(name, lambda: unweave.forget(net, forget, grams, self.val, config))
        self.rows[name] |= {"ok": result.ok, "epochs": len(result.history) - 1, "stopped": result.stopped}
        if readout:
            self.rows[name] |= self._errors(result.model)
        return result

    # ----------------------------------------------------------------------------------------------------- theirs

    def _plain(self) -> None:
        case, batches, papers = self.case, self.case.train.batches(512), self.case.papers.resolved()
        grams = self._time("plain fit", lambda: plain_grams(self.net, batches), slow=True)
        work = functools.partial(plain_forget, self.net, case.forget.batches(), grams, self.val, papers)
        first = functools.partial(
            plain_forget, self.net, case.forget.batches(), grams, self.val, replace(papers, epochs=1)
        )
        result = self._in_time("plain request", work, first)
        if result is None:
            return
        self.rows["plain request"] |= {"epochs": len(result.history) - 1, "stopped": result.stopped}
        self.rows["plain request"] |= self._errors(result.model)

    def _others(self) -> None:
        supply = supplies(self.case, self.net)
        chosen = BASELINES if self.options.others is None else self.options.others
        # Retraining has a row already, with the trainer that made the original.
        for name, method in ((name, BASELINES[name]) for name in chosen if name not in self.rows):
            work = call_of(method, supply)
            if isinstance(work, str):
                self.left_out[name] = work
                continue
            try:
                result = self._in_time(name, work)
            except (RuntimeError, ValueError, TypeError) as error:  # one method that fails must not cost the others
                self.left_out[name] = f"failed: {type(error).__name__}: {error}"
                print(f"  {name}: {self.left_out[name]}", flush=True)
                continue
            if result is None:
                continue
            self.rows[name] |= {"title": method.title, "ok": result.ok, "stopped": result.stopped}
            self.rows[name] |= {"needs": sorted(method.needs)} | self._errors(result.model)

    def _authors(self, retrained: nn.Module) -> None:
        if self.options.reference is None:
            self.left_out["authors"] = "not run: no checkout of their repository was given (--reference PATH)"
            return
        repeats, limit = self.options.slow_repeats, self.options.reference_limit
        found = run_authors(self.options.reference, self.case, self.net, retrained, repeats, limit)
        self.left_out |= found.left_out
        for name, row in found.rows.items():
            self.rows[name] = row
            print(f"  {name}: {row['median']:.3f} s ({row['min']:.3f} to {row['max']:.3f})", flush=True)
        for name, why in found.left_out.items():
            print(f"  {name}: {why}", flush=True)
        self.keep()


def _forward(net: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], convolutions: str) -> None:
    """In the arithmetic of a pass."""
    with at_rest(net, convolutions=convolutions):
        for x, _ in batches:
            net(x)


def table(result: Document) -> str:
    """For a screen: a way a line."""
    lines = []
    for network, entry in result["networks"].items():
        lines.append(f"{network}, {entry['pixels']}, forgets {entry['forget samples']} of {entry['training samples']}")
        lines += [
            f"  {name:<34}{row['median']:>10.3f} s  {row['min']:.3f} to {row['max']:.3f}"
            for name, row in entry["ways"].items()
        ]
        lines += [f"  {name:<34}{why}" for name, why in entry["left out"].items()]
    return "\n".join(lines)
