"""Other ways to forget, with the signature of :func:`unweave.forget`; ``BASELINES`` lists them by name."""

from unweave.baselines.contract import BaselineResult, Method, Methods
from unweave.baselines.delete import DELETE
from unweave.baselines.fine_tune import FINE_TUNE
from unweave.baselines.fisher import FISHER
from unweave.baselines.last_layers import CF_K, EU_K
from unweave.baselines.neg_grad import NEG_GRAD, NEG_GRAD_PLUS
from unweave.baselines.ntk import NTK
from unweave.baselines.random_label import RANDOM_LABEL
from unweave.baselines.retrain import RETRAIN
from unweave.baselines.salun import SALUN
from unweave.baselines.scrub import SCRUB
from unweave.baselines.sisa import SISA_METHOD
from unweave.baselines.ssd import SSD
from unweave.baselines.warnecke import FIRST_ORDER, SECOND_ORDER

BASELINES = Methods(
    {
        "retrain": RETRAIN,
        "fine_tune": FINE_TUNE,
        "eu_k": EU_K,
        "cf_k": CF_K,
        "neg_grad": NEG_GRAD,
        "neg_grad_plus": NEG_GRAD_PLUS,
        "random_label": RANDOM_LABEL,
        "scrub": SCRUB,
        "salun": SALUN,
        "delete": DELETE,
        "ntk": NTK,
        "fisher": FISHER,
        "ssd": SSD,
        "first_order": FIRST_ORDER,
        "second_order": SECOND_ORDER,
        "sisa": SISA_METHOD,
    }
)

__all__ = ["BASELINES", "BaselineResult", "Method"]
