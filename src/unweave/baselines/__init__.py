"""Other ways to forget, with the signature of :func:`unweave.forget`; ``BASELINES`` lists them by name."""

from unweave.baselines.contract import BaselineResult, Method
from unweave.baselines.fisher import FISHER
from unweave.baselines.ntk import NTK
from unweave.baselines.sisa import SISA_METHOD
from unweave.baselines.ssd import SSD
from unweave.baselines.warnecke import FIRST_ORDER, SECOND_ORDER

BASELINES: dict[str, Method] = {
    "ntk": NTK,
    "fisher": FISHER,
    "ssd": SSD,
    "first_order": FIRST_ORDER,
    "second_order": SECOND_ORDER,
    "sisa": SISA_METHOD,
}

__all__ = ["BASELINES", "BaselineResult", "Method"]
