"""Documents as an audit writes them: one with everything in it, one with nothing more than the schema asks for."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OUTCOMES = ("pass", "fail", "inconclusive")


def error(percent: float, samples: int) -> dict[str, Any]:
    """With a Wilson interval."""
    p, z = percent / 100, 1.96
    middle = (p + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z * sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    return {"value": percent, "low": 100 * (middle - half), "high": 100 * (middle + half), "samples": samples}


def separation(shift: float, rng: np.random.Generator, samples: int = 200) -> dict[str, Any]:
    """Two normal samples that far apart, with their AUC, ROC curve and histograms."""
    positives, negatives = rng.normal(shift, 1, samples), rng.normal(0, 1, samples)
    cuts = np.sort(np.concatenate([positives, negatives]))[::-1]
    tpr = [0.0, *(float((positives >= cut).mean()) for cut in cuts)]
    fpr = [0.0, *(float((negatives >= cut).mean()) for cut in cuts)]
    auc = float((positives[:, None] > negatives[None]).mean())
    half = 1.96 * sqrt(max(auc * (1 - auc), 0.02) / samples) * 0.9
    edges = np.linspace(-3.5, 5.5, 25)
    at_one = float(np.interp(0.01, fpr, tpr))
    return {
        "auc": {"value": auc, "low": max(auc - half, 0), "high": min(auc + half, 1)},
        "tpr_at_1_percent": {"value": at_one, "low": max(at_one - 0.02, 0), "high": min(at_one + 0.03, 1)},
        "tpr_at_01_percent": None,
        "balanced_accuracy": float(max(t + 1 - f for t, f in zip(tpr, fpr, strict=True)) / 2),
        "detectable_auc": 0.58,
        "models": [1, 1],
        "samples": [samples, samples],
        "roc": {"fpr": fpr, "tpr": tpr},
        "scores": {
            "edges": edges.tolist(),
            "positives": (np.histogram(positives, edges)[0] / samples).tolist(),
            "negatives": (np.histogram(negatives, edges)[0] / samples).tolist(),
        },
    }


def attack(name: str, title: str, explanation: str, judged: bool, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "explanation": explanation,
        "direction": "A high score means that the network seems to know the sample.",
        "judged": judged,
        "original": separation(1.7, rng),
        "unlearned": separation(0.08, rng),
        "retrained": separation(0.0, rng),
    }


def attacks(rng: np.random.Generator) -> list[dict[str, Any]]:
    return [
        attack("margin", "Margin", "Somebody with the network's answers looks at how clear they are.", True, rng),
        attack("loss", "Loss", "Somebody who also knows the right label looks at how wrong the answer is.", True, rng),
        attack("entropy", "Entropy", "Somebody without labels looks at how sure the network is.", False, rng),
        attack("gradient", "Gradient length", "Somebody with the weights looks at the gradient.", False, rng),
    ]


def entropies(rng: np.random.Generator) -> list[dict[str, Any]]:
    edges = np.linspace(-4, 0.5, 28)
    centres = {
        ("original", "forget"): -2.4,
        ("unlearned", "forget"): -0.8,
        ("retrained", "forget"): -0.7,
        ("original", "retained"): -2.5,
        ("unlearned", "retained"): -2.3,
        ("retrained", "retained"): -2.5,
        ("original", "held out"): -0.8,
        ("unlearned", "held out"): -0.75,
        ("retrained", "held out"): -0.7,
    }
    found = []
    for (model, part), centre in centres.items():
        values = np.clip(rng.normal(centre, 0.7, 500), -4, 0.5)
        shares = np.histogram(values, edges)[0] / len(values)
        found.append(
            {
                "model": model,
                "part": part,
                "edges": edges.tolist(),
                "shares": shares.tolist(),
                "median": float(np.median(values)),
            }
        )
    return found


def models(rng: np.random.Generator) -> list[dict[str, Any]]:
    errors = {"original": (3.0, 3.7, 36.4), "unlearned": (35.0, 3.8, 37.8), "retrained": (35.5, 3.0, 38.1)}
    found: list[dict[str, Any]] = []
    for name, values in errors.items():
        parts = zip(("forget", "retained", "held out"), values, (200, 4000, 1000), strict=True)
        by_class = {label: error(float(rng.uniform(20, 55)), 100) for label in NAMES}
        found.append(
            {"name": name, "errors": {part: error(value, n) for part, value, n in parts}, "by_class": by_class}
        )
    found[1]["seconds"], found[2]["seconds"], found[2]["models"] = 6.2, 95.0, 3
    for label in NAMES:  # what was unlearned stays close to what it was
        found[1]["by_class"][label] = error(
            min(found[0]["by_class"][label]["value"] + float(rng.normal(1.5, 2.5)), 95.0), 100
        )
    return found


def checks(outcome: str) -> list[dict[str, Any]]:
    return [
        {
            "name": "Attackers cannot find the samples",
            "outcome": outcome,
            "sentence": "The best attack does no better than it would on a network that never saw the samples.",
            "measured": {"value": 0.521, "low": 0.468, "high": 0.574},
            "allowed": [None, 0.6],
            "unit": "auc",
            "power": "An AUC of 0.58 or more would have been noticed four times in five.",
        },
        {
            "name": "The attack works on the original",
            "outcome": "pass",
            "sentence": "On the original network the same attack finds the samples, so it would have found them here.",
            "measured": {"value": 0.884, "low": 0.851, "high": 0.917},
            "allowed": [0.6, None],
            "unit": "auc",
        },
        {
            "name": "Other samples have not suffered",
            "outcome": "pass",
            "sentence": "The error on new samples has hardly changed.",
            "measured": {"value": 1.4, "low": -0.6, "high": 3.4},
            "allowed": [None, 5.0],
            "unit": "points",
            "power": "A rise of 4 points or more would have been noticed four times in five.",
        },
    ]


SENTENCES = {
    "pass": "The network behaves as if it had never seen the 200 samples, as far as three attacks can tell.",
    "fail": "An attacker can still tell the 200 samples apart from samples the network has never seen.",
    "inconclusive": "No trace of the 200 samples was found, but 200 samples are too few to be sure.",
}


def full(outcome: str = "pass", seed: int = 0) -> dict[str, Any]:
    """Everything an audit can say."""
    rng = np.random.default_rng(seed)
    return minimal() | {
        "made_by": {"unweave": "0.2.0", "torch": "2.10.0", "python": "3.11.7", "device": "cpu", "threads": 2},
        "request": {
            "title": "200 samples",
            "task": "samples",
            "samples": 200,
            "classes": list(NAMES),
            "method": "unweave.forget, match objective",
        },
        "tier": {
            "name": "T2",
            "meaning": "Compared with the original network and with networks trained without the samples.",
            "given": ["the original network", "200 held-out samples", "3 retrained networks"],
            "missing": ["reference networks for every sample, which would allow an attack on each of them alone"],
        },
        "thresholds": {"auc": 0.6, "held_out_points": 5.0, "control_auc": 0.6, "by_class": None},
        "verdict": {"outcome": outcome, "sentence": SENTENCES[outcome], "checks": checks(outcome)},
        "models": models(rng),
        "attacks": attacks(rng),
        "distances": distances(),
        "entropies": entropies(rng),
        "destinations": destinations(),
        "epochs": epochs(),
        "layers": layers(),
        "leakage": leakage(),
        "earlier": [
            {
                "title": "50 samples, in March",
                "samples": 50,
                "outcome": "inconclusive",
                "sentence": "Still nothing to be found, but 50 samples are few.",
                "auc": {"value": 0.55, "low": 0.43, "high": 0.67},
            }
        ],
        "not_covered": [
            "Attacks with reference networks for every single sample.",
            "Copies of the data, backups, older checkpoints and networks derived from this one.",
        ],
        "settings": {
            "seed": 0,
            "bootstrap": 2000,
            "forget": {"gamma": 0.9, "lr": None, "layers": ["conv1", "conv2"], "shuffle": True},
            "steps": [{"epoch": 1, "lr": 0.01}],
        },
        "rerun": "unweave audit --config unweave.toml --ids requests.txt --seed 0 -o audit.json",
    }


def distances() -> list[dict[str, Any]]:
    return [
        {
            "name": "js",
            "title": "Divergence of the answers",
            "explanation": "How differently two networks answer on the samples to forget, from 0 to 1.",
            "original": {"value": 0.41, "low": 0.37, "high": 0.45},
            "unlearned": {"value": 0.06, "low": 0.05, "high": 0.08, "p_value": 0.21},
            "retrained": {"value": 0.05, "low": 0.04, "high": 0.07},
        },
        {
            "name": "mmd",
            "title": "Distance of the score distributions",
            "explanation": "Between forgotten and new samples.",
            "original": {"value": 0.302, "p_value": 0.0002},
            "unlearned": {"value": 0.011, "p_value": 0.34},
        },
    ]


def destinations() -> list[dict[str, Any]]:
    found = []
    for model, own in (("original", 0.95), ("unlearned", 0.1), ("retrained", 0.0)):
        rest = (1 - own) / 3
        found.append(
            {
                "model": model,
                "class": "cat",
                "shares": {"cat": own, "dog": 1.6 * rest, "frog": rest, "deer": 0.4 * rest},
            }
        )
    return found


def epochs() -> list[dict[str, Any]]:
    return [
        {
            "epoch": i,
            "forget_error": 3 + 33 * (1 - 0.6**i),
            "held_out_error": 36.4 + 0.25 * i + 0.2 * (i % 2),
            "auc": 0.5 + 0.38 * 0.6**i,
        }
        for i in range(9)
    ]


def layers() -> list[dict[str, Any]]:
    sizes = {"conv1": (27, 14), "conv2": (576, 301), "conv3": (1152, 440), "fc1": (2048, 512), "fc2": (256, 97)}
    return [
        {"name": name, "kept": kept, "dimension": dimension, "shift": 0.01 * (i + 1)}
        for i, (name, (dimension, kept)) in enumerate(sizes.items())
    ]


def leakage() -> list[dict[str, Any]]:
    levels = (("conv1", 27, "low"), ("conv2", 576, "some"), ("fc1", 8192, "high"))
    return [
        {
            "layer": name,
            "rows": 4_096_000,
            "samples": 4000,
            "dimension": dimension,
            "samples_per_dimension": 4000 / dimension,
            "level": level,
        }
        for name, dimension, level in levels
    ]


def minimal() -> dict[str, Any]:
    """Nothing that could be left out."""
    return {
        "format": "unweave.audit",
        "version": 1,
        "created": "2026-03-01T10:02:11+00:00",
        "made_by": {},
        "request": {"title": "one sample", "task": "samples", "samples": 1},
        "tier": {"name": "T0", "meaning": "Only the network itself was given.", "given": [], "missing": []},
        "thresholds": {},
        "verdict": {
            "outcome": "inconclusive",
            "sentence": "Too little was given to say anything.",
            "checks": [{"name": "Anything", "outcome": "inconclusive", "sentence": "Nothing could be measured."}],
        },
        "models": [{"name": "unlearned", "errors": {}}],
        "attacks": [],
        "distances": [],
        "entropies": [],
        "not_covered": [],
        "settings": {},
        "rerun": "unweave audit",
    }
