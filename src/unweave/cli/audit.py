"""``unweave audit``: does the new model look as if it had never seen the samples?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unweave.cli.configfile import Values, add_flags, read_values

if TYPE_CHECKING:
    from unweave.audit.document import Story
    from unweave.audit.evidence import Evidence
    from unweave.audit.examine import Audit
    from unweave.audit.inside import Inside
    from unweave.cli.screen import Report

HELP = "Check with attacks and statistics whether the samples were forgotten: pass, fail or inconclusive."

USAGE = """\
unweave audit OUTPUTS [--task TASK] [--attack NAME ...] [--audit-out PATH] [--page PATH] [--LIMIT VALUE ...]
       unweave audit (--ids FILE [--task TASK] | --poisoned FILE | --classes 0,3 | --all [--task TASK])
                     [--config PATH] [--SETTING VALUE ...]"""

EXAMPLE = """\
examples:
  unweave audit --ids requests.txt --test test.npz      after 'unweave forget --ids requests.txt'
  unweave audit outputs.npz                             outputs of models made anywhere, by any method
  unweave audit models.npz --attack xgboost             the paper's attack on an ensemble, nothing else
  unweave audit models.npz --attack u-lira              the attack that knows the unlearning method
  unweave audit outputs.npz --page audit.html           also as a page for people

OUTPUTS is an .npz (or a folder of .npy files) of logits: forget_labels [n] and unlearned_forget [n, classes], and as
many as there are of original_forget, retrained_forget, held_out_labels, unlearned_held_out, … ; [models, n, classes]
for several models. docs/audit.md lists them all. Without --test the audit uses val, at which forgetting aimed: kinder.

exit codes: 0 pass, 3 fail, 4 inconclusive (too little data, or nothing to compare with)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command to argparse."""
    parser.epilog = EXAMPLE
    parser.usage = USAGE
    parser.add_argument("outputs", nargs="?", type=Path, metavar="OUTPUTS", help="outputs of models on disk")
    chosen = parser.add_argument_group("or: which samples were forgotten (one of these)").add_mutually_exclusive_group()
    chosen.add_argument("--ids", metavar="FILE", help="as given to 'unweave forget'")
    chosen.add_argument("--poisoned", metavar="FILE", help="the same, and the labels are wrong")
    chosen.add_argument("--classes", metavar="0,3", type=_words, help="all samples of these classes")
    chosen.add_argument("--all", action="store_true", help="all samples of [data] forget")
    parser.add_argument(
        "--earlier", action="append", metavar="FILE", help="ids of an earlier request, to be tested again; repeatable"
    )
    parser.add_argument(
        "--task", choices=("samples", "classes", "poison"), help="(default: that of the request's record, else samples)"
    )
    parser.add_argument(
        "--same-original", action="store_true", help="with OUTPUTS: all unlearned models were made of one original"
    )
    parser.add_argument("--attack", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--force", action="store_true", help="overwrite what an earlier audit wrote")
    add_flags(parser, "audit")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def run(arguments: argparse.Namespace) -> int:
    """Audit, and write what was found.

    Raises:
        UnweaveError: see :mod:`unweave.audit` and the modules of this package; nothing was written.
    """
    from unweave.audit.document import as_json, document
    from unweave.audit.examine import examine
    from unweave.cli.imports import own_modules
    from unweave.cli.outputs import Staged, check_places, uninterrupted, write_text
    from unweave.cli.screen import show, working

    _check_usage(arguments)
    _require_named_files(arguments)
    values = read_values(arguments)
    limits = _limits(values)
    places = {"audit": values.require("audit", "out"), "page": values.get("audit", "page")}
    outputs = {name: path for name, path in places.items() if path is not None}
    check_places(outputs, values, _inputs(arguments, values), arguments.force, once=True)
    with own_modules(), working("audit", quiet=arguments.quiet, clean_stdout=arguments.json) as report:
        evidence, story, inside = _evidence(arguments, values, report)
        seed = values.get("audit", "seed")
        audit = examine(evidence, limits, only=arguments.attack, inside=inside, seed=seed)
    found = document(audit, story)
    with Staged() as staged:
        staged.add(outputs["audit"], write_text(as_json(found)))
        if "page" in outputs:
            staged.add(outputs["page"], write_text(_page(found)))
        with uninterrupted():
            staged.place()
            title = f"{audit.verdict.outcome.upper()} ({found['tier']['name']})"
            rows = _rows(audit, found, list(outputs.values()))
            show(title, rows, found, as_json=arguments.json, quiet=arguments.quiet)
    return {"pass": 0, "fail": 3, "inconclusive": 4}[audit.verdict.outcome]


def _check_usage(arguments: argparse.Namespace) -> None:
    """Leave with exit code 2 where it is not said what to audit."""
    picked = arguments.ids or arguments.poisoned or arguments.classes or arguments.all
    if bool(picked) == bool(arguments.outputs):
        arguments.parser.error("give either OUTPUTS, or one of --ids, --poisoned, --classes, --all")
    if arguments.outputs and arguments.earlier:
        arguments.parser.error("--earlier goes with --ids and the like; OUTPUTS has arrays earlier_…")
    if arguments.task and (arguments.poisoned or arguments.classes):
        arguments.parser.error("--task goes with OUTPUTS, --ids and --all; --poisoned and --classes say it themselves")


def _require_named_files(arguments: argparse.Namespace) -> None:
    """Refuse a name that is mistyped before anything else is wrong with the command."""
    from unweave.cli.selection import files_of_ids
    from unweave.errors import ConfigError

    earlier = [("--earlier", Path(path)) for path in arguments.earlier or ()]
    for what, path in [("OUTPUTS", arguments.outputs), *files_of_ids(arguments).items(), *earlier]:
        if path is not None and not path.exists():
            raise ConfigError(f"{what}: {path} does not exist. Name a file that is there.")


def _inputs(arguments: argparse.Namespace, values: Values) -> dict[str, Path | None]:
    """What an audit reads besides the data and the weights of before."""
    from unweave.cli.outputs import Places
    from unweave.cli.selection import files_of_ids

    if arguments.outputs is not None:
        return {"OUTPUTS": arguments.outputs}
    request = {f"the request's {name}": path for name, path in Places.of(values).used(drop=True).items()}
    others = {f"[audit] {key}": values.get("audit", key) for key in ("retrained", "references")}
    earlier = {f"--earlier {path}": Path(path) for path in arguments.earlier or ()}
    return {**request, "[fit] grams": values.get("fit", "grams"), **others, **files_of_ids(arguments), **earlier}


def _limits(values: Values) -> Any:
    from unweave.audit.limits import Thresholds
    from unweave.cli.settings import AUDIT_LIMITS

    return Thresholds(**values.given(AUDIT_LIMITS))


def _evidence(arguments: argparse.Namespace, values: Values, report: Report) -> tuple[Evidence, Story, Inside | None]:
    """The outputs: read from disk, or made by running the models that the settings name."""
    from unweave.audit.document import Story
    from unweave.audit.files import load_evidence
    from unweave.cli.trial import evidence_of

    rerun = "unweave audit " + " ".join(_quoted(word) for word in sys.argv[2:])
    if arguments.outputs is None:
        return evidence_of(arguments, values, report, rerun)
    evidence = load_evidence(arguments.outputs, arguments.task or "samples", arguments.same_original)
    return evidence, Story(rerun=rerun), None


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _page(found: dict[str, Any]) -> str:
    from unweave.report import render

    return render(found)


def _rows(audit: Audit, found: dict[str, Any], written: list[Path]) -> dict[str, str]:
    """The verdict, the errors, every attack and every check in a row each."""
    rows = {"verdict": audit.verdict.sentence} | _errors(found["models"])
    for attacked in audit.attacks:
        auc = attacked.unlearned.auc
        control = "" if attacked.original is None else f"; the original {attacked.original.auc.value:.3f}"
        floor = "" if attacked.retrained is None else f"; retrained {attacked.retrained.auc.value:.3f}"
        rows[attacked.attack.title] = f"AUC {auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f}){control}{floor}"
    for distance in audit.distances:
        floor = "" if distance.retrained is None else f"; retrained {distance.retrained.value:.3g}"
        rows[distance.title] = f"{distance.unlearned.value:.3g}{floor}"
    for check in found["verdict"]["checks"]:
        rows[f"{check['name']}: {check['outcome']}"] = check["sentence"] + _numbers(check)
    return rows | {"written": ", ".join(map(str, written))}


def _errors(models: list[dict[str, Any]]) -> dict[str, str]:
    """Percent wrong before and after, in the words and the order of the page."""
    from unweave.report.looks import PARTS
    from unweave.report.numbers import EN_DASH, number

    errors = {model["name"]: model["errors"] for model in models}
    rows = {}
    for part, words in PARTS.items():
        wrong = {name: number(one[part]["value"], "percent") for name, one in errors.items() if part in one}
        if "unlearned" in wrong:
            floor = f"; retrained {wrong['retrained']}" if "retrained" in wrong else ""
            change = f"{wrong.get('original', EN_DASH):>6} → {wrong['unlearned']:>6}"
            rows[f"{words}, wrong"] = f"{change} of {errors['unlearned'][part]['samples']:,}{floor}"
    return rows


def _numbers(check: dict[str, Any]) -> str:
    """What was measured and what was allowed, on a line below the sentence; nothing where a check has no numbers."""
    from unweave.report.numbers import allowed, interval

    unit, facts = check.get("unit"), []
    if "measured" in check:
        facts.append(f"Measured: {interval(check['measured'], unit)}")
    if "allowed" in check:
        facts.append(f"allowed: {allowed(check['allowed'], unit)}")
    return "\n" + "; ".join(facts) if facts else ""
