"""What tuning tries for every baseline: six settings each, the method's authors' own first (``{}``: the defaults)."""

from __future__ import annotations

from typing import Any

TRIALS: dict[str, list[dict[str, Any]]] = {
    "fine_tune": [{}, {"lr": 0.02}, {"lr": 0.04}, {"lr": 0.1}, {"lr": 0.1, "epochs": 5}, {"lr": 0.02, "momentum": 0.9}],
    "eu_k": [
        {},
        {"epochs": 30},
        {"epochs": 30, "lr": 0.01, "lr_end": 0.0005},
        {"epochs": 30, "schedule": "one-cycle", "lr_end": 0.0, "weight_decay": 5e-4},
        {"epochs": 30, "schedule": "exponential", "lr": 0.01, "lr_end": 0.0005, "weight_decay": 1e-4},
        {"epochs": 14},
    ],
    "cf_k": [
        {},
        {"epochs": 14},
        {"epochs": 14, "lr": 0.2},
        {"epochs": 14, "lr": 0.01, "lr_end": 0.0005},
        {"epochs": 14, "schedule": "one-cycle", "lr_end": 0.0, "weight_decay": 5e-4},
        {"epochs": 30, "weight_decay": 5e-4},
    ],
    "neg_grad": [{}, {"lr": 1e-5}, {"lr": 3e-5}, {"lr": 3e-4}, {"lr": 1e-3, "epochs": 2}, {"lr": 1e-4, "epochs": 10}],
    "neg_grad_plus": [{}, {"a": 0.999}, {"a": 0.99}, {"a": 0.95}, {"a": 0.99, "lr": 0.002}, {"a": 0.95, "lr": 0.002}],
    "random_label": [{}, {"lr": 3e-5}, {"lr": 3e-4}, {"lr": 1e-3}, {"lr": 3e-4, "labels": "any"}, {"epochs": 1}],
    "scrub": [
        {},
        {"forget_epochs": 2, "alpha": 0.001, "gamma": 0.99, "epochs": 3},
        {"lr": 1e-3},
        {"lr": 2e-3, "forget_epochs": 2},
        {"rewind": True},
        {"lr": 1e-3, "rewind": True, "epochs": 8},
    ],
    "salun": [{}, {"lr": 0.005}, {"lr": 0.03}, {"lr": 0.013, "epochs": 5}, {"lr": 0.005, "share": 0.3}, {"lr": 0.002}],
    "delete": [{}, {"lr": 3e-5}, {"lr": 3e-4}, {"lr": 1e-3}, {"lr": 3e-4, "epochs": 10}, {"lr": 1e-4, "epochs": 40}],
    "ssd": [
        {},
        {"alpha": 5.0},
        {"alpha": 20.0},
        {"alpha": 50.0},
        {"alpha": 50.0, "lam": 0.1},
        {"alpha": 100.0, "lam": 0.1},
    ],
    "fisher": [{"alpha": a, "samples": 2000} for a in (1e-6, 1e-7, 1e-8, 3e-7, 3e-6, 1e-5)],
    "ntk": [{}, {"mu": 1.0}, {"mu": 0.01}, {"mu": 0.001}, {"scale": False}, {"mu": 0.01, "scale": False}],
    "first_order": [{}, {"tau": 1e-5}, {"tau": 5e-5}, {"tau": 1e-4}, {"steps": 10}, {"tau": 5e-5, "steps": 10}],
    "second_order": [{}, {"steps": 10}],
}
"""Names of settings are those of ``unweave.baselines.BASELINES[method].config``."""
