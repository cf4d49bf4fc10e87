"""What counts as forgotten: written down before an audit runs, and printed with its verdict.

Each check compares an interval with what is allowed. *Pass*: the whole interval is inside. *Fail*: the whole interval
is outside. *Inconclusive*: it reaches over the border, so there is too little data to tell. To pass is therefore an
equivalence test (two one-sided tests at 5 % each: a 90 % interval), and never "nothing was found".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from unweave.errors import ConfigError


@dataclass(frozen=True)
class Thresholds:
    """The borders, with the reason for each default.

    Raises:
        ConfigError: a value that makes no sense.
    """

    auc: float = 0.10
    """How far an attack's AUC may be from where a network that never saw the data stands (0.5, or what the retrained
    network shows). At 0.10, somebody who is shown one forgotten sample and one stranger tells them apart at most six
    times in ten. Smaller values need more samples: 200 forgotten and 1,000 strangers give a 90 % interval of ±0.04."""
    shape: float = 0.14
    """How far apart the margins' distribution on the forget set may be from what it should be (Kolmogorov–Smirnov): for
    normals, an AUC that is 0.10 off is 0.14 here. It sees what a mean hides, such as half too little and half too
    much. Two samples of 200 differ by 0.14 one time in twenty by chance alone."""
    surest: float = 5.0
    """Percent of the forgotten samples that may be among the surest cases, where one percent of strangers are. About
    where a fifth of the samples left as they were brings it in made-up worlds (AUC 0.57); a tenth does not."""
    held_out_rise: float = 2.0
    """Points by which the held-out error may exceed the original's (or the retrained network's, if there is one): what
    a second training run with another seed often costs."""
    class_rise: float = 5.0
    """The same for the classes of the forgotten samples alone, in their proportions; there are fewer samples of them,
    and held-out samples that resemble the forgotten ones do become a little harder."""
    retained_rise: float = 2.0
    """The same for samples that should have been kept."""
    forget_gap: float = 10.0
    """Points between the unlearned and the retrained network's error on the forget set. Where a third of the samples
    is wrong, an AUC that is 0.10 off is about this far."""
    recognised: float = 5.0
    """Classes: points above chance at which held-out samples of a removed class may still be recognised."""
    followed: float = 20.0
    """Poison: percent of the poisoned samples that may still get their wrong label. A network that never saw them
    confuses some of them all the same."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = {"auc": 0.5, "shape": 1.0}.get(field.name, 100.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < most:
                raise ConfigError(f"Invalid threshold {field.name}: {value!r}. Supported: above 0, below {most:g}.")

    def document(self) -> dict[str, float]:
        return asdict(self)
