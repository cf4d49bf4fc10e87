"""What requests have taken out of the audited weights so far: the Grams beside them keep a digest of each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unweave.cli.sources import Source
from unweave.errors import MismatchError
from unweave.grams import LayerGrams
from unweave.reading.batches import Loader, checked
from unweave.reading.rest import fingerprint
from unweave.reading.samples import Samples


@dataclass(frozen=True)
class Past:
    """The digests of samples that are out, and their key; no digests: none is out."""

    key: str = ""
    digests: frozenset[str] = frozenset()

    @staticmethod
    def of(model: nn.Module, grams: LayerGrams | None, record: Mapping[str, Any]) -> Past | None:
        """Of the audited network; None where there is nothing to compare with.

        That is so where it has no Grams, where those beside it are another network's (its weights were made by another
        tool, or put there later), and after a request that failed and changed nothing: that took nothing out, which the
        audit will find.
        """
        if grams is None or grams.origin.model != fingerprint(model):
            return None
        before, after = (record.get("fingerprints", {}).get(when) for when in ("before", "after"))
        if record.get("ok") is False and before == after:
            return None
        return Past(grams.origin.key, frozenset(grams.origin.forgotten))

    def before(self, request: Loader, name: str) -> Past:
        """What is out besides a request's own samples.

        Raises:
            MismatchError: samples that no request has taken out of these weights, whose file has this name.
        """
        own = self._digests(request)
        strange = sum(digest not in self.digests for digest in own)
        if strange:
            raise MismatchError(
                f"{strange} of these {len(own)} samples were not part of a request that led to {name}. Name the "
                "samples as 'unweave forget' was given them (the same ids, data and preprocessing; where a loader "
                "pads, the same batches), and with --out the weights that it wrote."
            )
        return Past(self.key, self.digests - set(own))

    def kept(self, source: Source, order: Sequence[int], most: int) -> list[int]:
        """The first positions in a source, at most so many, whose samples are not out, in ascending order.

        Reads only as many samples as it may take to find them: those wanted, and one more for each that is out.
        """
        if not self.digests or not order:
            return sorted(order[:most])
        tried = sorted(order[: most + len(self.digests)])
        digests = dict(zip(tried, self._digests(source.only(tried)), strict=True))
        return sorted([position for position in order[: len(tried)] if digests[position] not in self.digests][:most])

    def _digests(self, loader: Loader) -> list[str]:
        """One batch at a time, for what is looked through may be large."""
        return [digest for batch in checked(loader, "audit") for digest in Samples([batch]).digests(self.key)]
