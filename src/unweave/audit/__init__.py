"""Does a network look as if it had never seen the data? Outputs in, results out; nothing here knows how it forgot.

evidence = Evidence(unlearned=Answers.of(collect(new, forget), collect(new, test)),
                    original=Answers.of(collect(old, forget), collect(old, test)),
                    task="samples")              # or "classes", "poison": what was to be forgotten
audit = examine(evidence)
audit.verdict.outcome                        # "pass", "fail" or "inconclusive"
save(document(audit), "audit.json")          # for unweave.report
"""

from importlib.util import find_spec

from unweave.errors import ConfigError

if find_spec("scipy") is None or find_spec("sklearn") is None:
    raise ConfigError("An audit needs SciPy and scikit-learn. Install them: pip install 'unweave[audit]'.")

from unweave.audit.confusion import confusion_left, swap_labels
from unweave.audit.document import Story, document, save
from unweave.audit.evidence import Answers, Before, Evidence, Yardstick
from unweave.audit.examine import ATTACKS, Audit, examine
from unweave.audit.files import load_evidence, save_evidence
from unweave.audit.inside import look_inside
from unweave.audit.leakage import leakage
from unweave.audit.limits import Thresholds
from unweave.audit.measure import Interval, Separation, separate
from unweave.audit.outputs import Ensemble, Outputs, collect
from unweave.audit.references import References, train_references

__all__ = [
    "ATTACKS",
    "Answers",
    "Audit",
    "Before",
    "Ensemble",
    "Evidence",
    "Interval",
    "Outputs",
    "References",
    "Separation",
    "Story",
    "Thresholds",
    "Yardstick",
    "collect",
    "confusion_left",
    "document",
    "examine",
    "leakage",
    "load_evidence",
    "look_inside",
    "save",
    "save_evidence",
    "separate",
    "swap_labels",
    "train_references",
]
