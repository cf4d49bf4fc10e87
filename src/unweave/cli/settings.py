"""Every setting of ``unweave.toml``, once: its section, its flag, its meaning, and how it stands in a new file."""

from __future__ import annotations

from dataclasses import dataclass

from unweave.cli import kinds
from unweave.cli.kinds import Kind


@dataclass(frozen=True)
class Setting:
    """One setting. It is a flag of the commands named in ``used_by``."""

    section: str
    key: str
    kind: Kind
    meaning: str
    sample: str
    """Its value in the file that ``unweave init`` writes, as TOML."""
    shown: bool = False
    """Whether it stands there as a setting; the others stand there as comments."""
    default: object = None
    used_by: tuple[str, ...] = ("fit", "forget", "audit")
    named: str = ""
    """The flag, where it is not the key with dashes."""

    @property
    def flag(self) -> str:
        return self.named or "--" + self.key.replace("_", "-")

    @property
    def dest(self) -> str:
        """Where argparse keeps the flag's value."""
        return f"{self.section}.{self.key}"

    def __str__(self) -> str:
        return f"[{self.section}] {self.key}"


_FORGET = ("forget",)
_FIT = ("fit",)
_AUDIT = ("audit",)

MODEL = (
    Setting(
        "model",
        "factory",
        kinds.TEXT,
        '"package.module:function" that returns the network; modules are looked for in the current directory too',
        '"my_project.model:build"',
        shown=True,
    ),
    Setting(
        "model",
        "weights",
        kinds.PATH,
        "its trained weights: .safetensors, or a state dict written by torch.save; "
        "leave it out if the factory returns the trained network",
        '"model.safetensors"',
        shown=True,
    ),
    Setting(
        "model",
        "device",
        kinds.TEXT,
        '"auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" …',
        '"auto"',
        True,
        "auto",
    ),
    Setting(
        "model",
        "arguments",
        kinds.ARGUMENTS,
        "keyword arguments for the factory",
        "{ width = 64 }",
        named="--argument",
    ),
)

DATA = (
    Setting(
        "data",
        "train",
        kinds.SOURCE,
        "the training samples, without random augmentation: a folder of images per class, an .npz, a .pt, or "
        '"package.module:function" that returns a Dataset, a loader or a pair of tensors',
        '"train.npz"',
        shown=True,
    ),
    Setting("data", "val", kinds.SOURCE, "held-out samples, to aim at and to watch for damage", '"val.npz"', True),
    Setting(
        "data",
        "forget",
        kinds.SOURCE,
        "where the samples to forget are picked from; without it, the training samples",
        '"forget.npz"',
        used_by=("forget", "audit"),
    ),
    Setting(
        "data",
        "test",
        kinds.SOURCE,
        "samples that neither training nor forgetting used, for the audit; without it, val, at which forgetting aimed",
        '"test.npz"',
        used_by=_AUDIT,
    ),
    Setting("data", "batch_size", kinds.INTEGER, "samples in a batch", "256", True, 256),
    Setting("data", "resize", kinds.PAIR, "image folders: height and width to resize to (bilinear)", "[32, 32]"),
    Setting(
        "data",
        "mean",
        kinds.NUMBERS,
        "images from files: subtract this per channel, after scaling to [0, 1]",
        "[0.5, 0.5, 0.5]",
    ),
    Setting("data", "std", kinds.NUMBERS, "images from files: then divide by this per channel", "[0.25, 0.25, 0.25]"),
    Setting(
        "data",
        "class_names",
        kinds.NAMES,
        "image folders: the sub-folders in the order of the labels; without it, those of the training folder, sorted",
        '["cat", "dog"]',
    ),
)

FIT = (
    Setting(
        "fit",
        "grams",
        kinds.PATH,
        "the Grams: written by fit, read by forget",
        '"grams.safetensors"',
        True,
        "grams.safetensors",
    ),
    Setting("fit", "layers", kinds.LAYERS, "only these layers, or the last k", '["conv1", "head"]', used_by=_FIT),
    Setting(
        "fit",
        "transform",
        kinds.TEXT,
        "a label of your own for the preprocessing; forget refuses Grams with another one",
        '"plain"',
        default="",
        used_by=("fit", "forget"),
    ),
    Setting(
        "fit",
        "dtype",
        kinds.TEXT,
        'how Grams are stored: "float64", or "float32" for half the size',
        '"float64"',
        default="float64",
        used_by=("fit", "forget"),
    ),
    Setting(
        "fit",
        "stride",
        kinds.TEXT,
        '"layer", or "one" to follow the paper\'s code',
        '"layer"',
        default="layer",
        used_by=_FIT,
    ),
    Setting(
        "fit",
        "tf32",
        kinds.SWITCH,
        "run float32 convolutions as TF32 on a GPU: faster; requests must run on the same kind of GPU",
        "true",
        default=False,
        used_by=_FIT,
    ),
    Setting(
        "fit",
        "resume",
        kinds.PATH,
        "a folder to keep the sums in as they grow, so that after a crash the same command goes on from there",
        '"sums"',
        used_by=_FIT,
    ),
    Setting(
        "fit",
        "save_every",
        kinds.INTEGER,
        "with resume: batches until the sums are written again",
        "200",
        default=200,
        used_by=_FIT,
    ),
)


def _forget(key: str, kind: Kind, meaning: str, sample: str, shown: bool = False, default: object = None) -> Setting:
    named = "--forget-batch-size" if key == "batch_size" else ""  # --batch-size is that of [data]
    return Setting("forget", key, kind, meaning, sample, shown, default, _FORGET, named)


FORGET_FILES = (
    Setting(
        "forget",
        "out",
        kinds.PATH,
        "the new weights",
        '"forgotten.safetensors"',
        True,
        "forgotten.safetensors",
        used_by=("forget", "audit"),
        named="--out",
    ),
    _forget(
        "grams_out",
        kinds.PATH,
        "the Grams for the next request; without it, beside out",
        '"forgotten.grams.safetensors"',
    ),
    _forget("result", kinds.PATH, "the record of the request; without it, beside out", '"forgotten.json"'),
)

FORGET_CONFIG = (
    _forget("preset", kinds.TEXT, "start from the paper's settings for one of its experiments", '"allcnn-cifar10"'),
    _forget("task", kinds.TEXT, '"samples", "classes" or "poison"; --classes and --poisoned set it', '"samples"'),
    _forget("objective", kinds.TEXT, '"match", or "paper" for the paper\'s loss', '"match"'),
    _forget("gamma", kinds.GAMMA, "share of each layer's energy that must not be touched, in (0, 1]", "0.9"),
    _forget(
        "protect", kinds.TEXT, 'how: "hard", "soft", or "auto", soft where all directions are used alike', '"auto"'
    ),
    _forget("way", kinds.TEXT, 'samples: "walk", or "solve" for all margins in one or a few large steps', '"walk"'),
    _forget("lam", kinds.NUMBER, "weight of the entropy in the paper's loss, which is taken then", "0.2"),
    _forget("eps", kinds.NUMBER, "bounds the gradient of the paper's loss, which is taken then, by 1/eps", "0.05"),
    _forget("odds", kinds.NUMBER, "classes: how strongly the odds among those that stay are held", "0.5"),
    _forget("lr", kinds.NUMBER, "learning rate; without it, the step chooses itself", "0.05"),
    _forget("lr_end", kinds.NUMBER, "learning rate after the last epoch, reached exponentially", "0.01"),
    _forget("epochs", kinds.INTEGER, "at most this many passes over the forget set", "100"),
    _forget("batch_size", kinds.INTEGER, "samples in a step", "128"),
    _forget("stop", kinds.TEXT, '"held-out", "chance", "poison", "paper" or "epochs"', '"held-out"'),
    _forget("layers", kinds.LAYERS, "move only these layers, or only the last k", "2"),
    _forget("seed", kinds.INTEGER, "seed of every random choice", "0"),
    _forget(
        "max_damage",
        kinds.NUMBER,
        "points of validation error, beside what is due, that count as a collapse, which is undone",
        "5.0",
    ),
    _forget("watch", kinds.TEXT, 'when to look at the validation set: at the "ends", or after all "epochs"', '"ends"'),
    _forget("energy", kinds.TEXT, 'what gamma is a share of: "sigma" or "sigma2"', '"sigma"'),
    _forget("rank_rule", kinds.TEXT, '"paper", "le" or "lt"', '"paper"'),
    _forget("negative", kinds.TEXT, 'negative eigenvalues: "clip" or "abs"', '"clip"'),
    _forget("freeze_at_one", kinds.SWITCH, "freeze a layer whose gamma is 1", "false"),
    _forget("label_shift", kinds.SWITCH, "samples: reckon with classes that lose more samples than others", "true"),
    _forget("shuffle", kinds.SWITCH, "shuffle the forget set in every epoch", "true"),
    _forget("dropout", kinds.SWITCH, "leave dropout on while unlearning", "false"),
    _forget("idle_first_epoch", kinds.SWITCH, "let the schedule run one epoch ahead", "false"),
    _forget("strangers", kinds.TEXT, 'samples that were never fitted: "refuse", or "tell" of them', '"refuse"'),
    _forget("trust", kinds.INTEGER, "poison: at most so many directions of the last linear layer are rescaled", "400"),
)


def _audit(key: str, kind: Kind, meaning: str, sample: str, shown: bool = False, default: object = None) -> Setting:
    named = {"out": "--audit-out", "seed": "--audit-seed"}.get(key, "")  # --out is that of [forget]
    return Setting("audit", key, kind, meaning, sample, shown, default, _AUDIT, named)


AUDIT_FILES = (
    _audit("out", kinds.PATH, "what the audit found, as JSON", '"audit.json"', True, "audit.json"),
    _audit("page", kinds.PATH, "also write it as a page for people", '"audit.html"'),
    _audit(
        "retrained",
        kinds.PATH,
        "weights of a network retrained without the samples: tier T3",
        '"retrained.safetensors"',
    ),
    _audit(
        "references",
        kinds.PATH,
        "outputs of reference models, from train_references: tier T1",
        '"references.safetensors"',
    ),
    _audit(
        "retained",
        kinds.INTEGER,
        "how many retained samples to look at, where the training set is there",
        "2000",
        default=2000,
    ),
    _audit("seed", kinds.INTEGER, "seed of every random choice", "0", default=0),
)

AUDIT_LIMITS = (
    _audit("auc", kinds.NUMBER, "how far from 0.5 (or the retrained network's) an attack's AUC may be", "0.1"),
    _audit("shape", kinds.NUMBER, "how far the margins' distribution may be from what it should be (KS)", "0.14"),
    _audit("surest", kinds.NUMBER, "percent of forgotten samples where one percent of strangers is accused", "5.0"),
    _audit("held_out_rise", kinds.NUMBER, "points by which the held-out error may rise", "2.0"),
    _audit("class_rise", kinds.NUMBER, "points by which their own classes' held-out error may rise", "5.0"),
    _audit("retained_rise", kinds.NUMBER, "points by which the error on retained samples may rise", "2.0"),
    _audit("forget_gap", kinds.NUMBER, "points between unlearned and retrained on the forget set", "10.0"),
    _audit(
        "recognised", kinds.NUMBER, "classes: points above chance at which a removed class may be recognised", "5.0"
    ),
    _audit("followed", kinds.NUMBER, "poison: percent of wrong labels that may still be followed", "20.0"),
)

SETTINGS: tuple[Setting, ...] = (*MODEL, *DATA, *FIT, *FORGET_FILES, *FORGET_CONFIG, *AUDIT_FILES, *AUDIT_LIMITS)
SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS))
