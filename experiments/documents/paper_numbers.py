"""The paper's numbers, transcribed from its LaTeX: one entry a table, each row as (mean, standard deviation).

Errors and accuracies in percent, seconds on the authors' machine (which they do not name). A plain number: the paper
gives no deviation. The figures are pictures, so only what the text says of them is in here.
"""

from __future__ import annotations

from typing import Any

NETWORKS = {"full": 50, "retrained": 50, "on trial": 5}
"""Behind the attack of tables 1 and 2."""

TABLE1: dict[str, Any] = {
    "source": "Table 1 (tb:compare): 500 samples of class 0, CIFAR-10, AllCNN; mean of 5 runs",
    "rows": {
        "retrained": {"retained": (0.04, 0.01), "forgotten": (9.28, 1.25), "test": (9.78, 0.19), "seconds": (1021, 18)},
        "eu_k": {"retained": (0.06, 0.01), "forgotten": (0.12, 0.16), "test": (10.13, 0.15), "seconds": (821, 22)},
        "ntk": {"retained": (3.49, 0.98), "forgotten": (11.05, 1.83), "test": (12.68, 0.74)},
        "scrub": {"retained": (0.01, 0.00), "forgotten": (10.45, 1.61), "test": (10.26, 0.44), "seconds": (321, 43)},
        "pgu": {"retained": (0.05, 0.01), "forgotten": (9.92, 0.45), "test": (9.86, 0.15), "seconds": (88.45, 4.12)},
    },
    "auc": {"original": 0.6403, "pgu": 0.5340},
    "attack networks": NETWORKS,
    "notes": ("of PGU's 88 s, SVD takes less than 6", "NTK saw 1,500 retained samples, so its time is not given"),
}

TABLE2: dict[str, Any] = {
    "source": "Table 2 (tb:class_accuracy): the first 5 classes of TinyImageNet, ResNet-18; mean of 5 runs",
    "rows": {
        "original": {"retained test": (52.78, 0.36), "retained": (0.56, 0.04)},
        "retrained": {"retained test": (52.58, 0.17), "retained": (0.56, 0.05), "seconds": (3846, 118)},
        "eu_k": {"retained test": (53.15, 0.28), "retained": (1.84, 0.08), "seconds": (2318, 97)},
        "scrub": {"retained test": (51.80, 0.37), "retained": (0.20, 0.00), "seconds": (1693, 65)},
        "pgu": {"retained test": (53.03, 0.43), "retained": (0.74, 0.06), "seconds": (765, 45)},
    },
    "auc": {"original": 0.7053, "pgu": 0.5392},
    "attack networks": NETWORKS,
    "notes": ("the AUCs are those of the supplement's table by blocks, 6 of them; it has EU-k by blocks alone",),
}

TABLE2_TEN: dict[str, Any] = {
    "source": "Table 2, the rows for 10 classes, commented out in the LaTeX",
    "rows": {
        "retrained": {"retained test": (53.58, 0.45), "retained": (0.24, 0.03), "seconds": (3772, 119)},
        "eu_k": {"retained test": (53.37, 0.32), "retained": (0.28, 0.03), "seconds": (2224, 103)},
        "scrub": {"retained test": (53.08, 0.32), "retained": (0.15, 0.01), "seconds": (1605, 59)},
        "pgu": {"retained test": (53.75, 0.61), "retained": (1.19, 0.18), "seconds": (873, 71)},
    },
}

TABLE3: dict[str, Any] = {
    "source": "Table 3 (tb:accuracy): four steps of 1,000 samples, CIFAR-10, SmallVGG; mean of 5 runs",
    "steps": ("0 - 1K", "1K - 2K", "2K - 3K", "3K - 4K"),
    "rows": {
        "retrained": {
            "test": ((9.62, 0.52), (9.55, 0.44), (9.38, 0.32), (9.84, 0.43)),
            "retained": ((0.00, 0.00),) * 4,
            "forgotten": ((9.61, 0.53), (9.51, 0.43), (9.59, 0.30), (9.69, 0.26)),
            "seconds": ((1030, 19), (1020, 20), (1009, 21), (995, 22)),
        },
        "pgu": {
            "test": ((9.84, 1.08), (9.86, 0.99), (9.78, 0.95), (9.80, 1.11)),
            "retained": ((0.00, 0.00), (0.00, 0.00), (0.01, 0.00), (0.01, 0.00)),
            "forgotten": ((10.02, 0.97), (9.93, 1.10), (10.02, 1.24), (11.30, 1.37)),
            "seconds": ((156, 21), (161, 19), (178, 29), (172, 24)),
        },
    },
    "notes": ("the ROC curve after the last step is said to lie on the diagonal; no AUC is given",),
}

TABLE4: dict[str, Any] = {
    "source": "Table 4 (tb:depoisoning): test accuracy, CIFAR-10, SmallVGG; 90.16 with all labels right",
    "budgets": (5_000, 10_000, 15_000, 20_000, 25_000),
    "full clean": 90.16,
    "rows": {
        "poisoned": (86.07, 79.32, 69.69, 56.78, 45.36),
        "clean": (89.81, 88.89, 88.69, 87.68, 86.86),
        "pgu": (87.95, 86.87, 85.46, 85.13, 83.12),
        "first_order": (86.56, 83.77, 79.68, 74.11, 67.98),
        "second_order": (87.43, 84.13, 79.80, 74.28, 68.28),
    },
}

TABLE4_TINY: dict[str, Any] = {
    "source": "Supplement (tb:depoisoning_1): test accuracy, TinyImageNet, ResNet-18; 48.18 with all labels right",
    "budgets": (10_000, 20_000, 30_000, 40_000, 50_000),
    "full clean": 48.18,
    "rows": {
        "poisoned": (44.06, 39.76, 34.42, 28.70, 22.40),
        "clean": (46.40, 45.30, 43.90, 42.34, 39.48),
        "pgu": (45.38, 44.34, 43.60, 42.50, 41.14),
    },
}

GAMMA: dict[str, Any] = {
    "source": "Supplement (tb:by_var): errors by γ, 1,000 samples, CIFAR-10, SmallVGG",
    "retrained": {"forgotten": 9.61, "retained": 0.00, "test": 9.62},
    "rows": {
        "0.995": {"forgotten": 1.10, "retained": 0.00, "test": 9.90},
        "0.99": {"forgotten": 4.28, "retained": 0.00, "test": 9.88},
        "0.98": {"forgotten": 10.04, "retained": 0.00, "test": 9.86},
        "0.96": {"forgotten": 10.06, "retained": 0.00, "test": 9.84},
        "0.9": {"forgotten": 10.06, "retained": 0.00, "test": 9.84},
        "0.85": {"forgotten": 10.04, "retained": 0.00, "test": 9.88},
        "0.8": {"forgotten": 13.80, "retained": 1.74, "test": 13.78},
        "0.75": {"forgotten": 19.30, "retained": 8.15, "test": 19.14},
    },
}

LAYERS: dict[str, Any] = {
    "smallvgg": {
        "source": "Supplement (tb:by_layer): AUC by the number of last layers that move, SmallVGG, 100 a class",
        "pgu": (0.6590, 0.6554, 0.5086, 0.5087, 0.5067, 0.5070),
        "eu_k": (0.6590, 0.6587, 0.5587, 0.5379, 0.5168, 0.5040),
    },
    "resnet18": {
        "source": "Supplement (tb:by_layer_resnet18): AUC by the number of last blocks that move, ResNet-18, 5 classes",
        "pgu": (0.7053, 0.7035, 0.6063, 0.5409, 0.5395, 0.5393, 0.5392),
        "eu_k": (0.7053, 0.5350, 0.5349, 0.5243, 0.5198, 0.5045, 0.5045),
    },
}
"""By number of layers or blocks: none, one, two … all."""

INCREMENTAL: dict[str, Any] = {
    "source": "Supplement (fig:allcnn_incremental, fig:smallvgg_incremental): until test accuracy drops",
    "fails after so many a class": {"allcnn": 400, "smallvgg": 1100},
}

EPOCHS: dict[str, Any] = {
    "source": "Supplement (fig:entropy_by_epoch, fig:entropy_by_epoch_resnet and the text about them)",
    "early stop": {"smallvgg": 12},
    "beyond": {"smallvgg": 40, "resnet18": 99},
    "stable from": {"resnet18": 70},
}

PAPER: dict[str, dict[str, Any]] = {
    "table1": TABLE1,
    "table2": TABLE2,
    "table2-ten": TABLE2_TEN,
    "table3": TABLE3,
    "table4": TABLE4,
    "table4-tiny": TABLE4_TINY,
    "gamma": GAMMA,
    "layers": LAYERS,
    "incremental-long": INCREMENTAL,
    "epochs": EPOCHS,
}
"""By the name of the experiment; of class-smallvgg the paper has a picture alone, of attacks nothing."""
