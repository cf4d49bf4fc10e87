"""Models whose weights are spread over the ranks by FSDP2 (``torch.distributed.fsdp.fully_shard``).

Their layers gather their weights from all ranks in every forward pass, so ranks have to walk in step: a rank that is
through with its share runs its last batch again, for nothing, until the others are through as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from unweave.distributed import exchange, together
from unweave.errors import DataError, ModelError
from unweave.reading.batches import Inputs


def is_spread(net: nn.Module) -> bool:
    """Whether FSDP2 holds some of the weights."""
    return any(hasattr(module, "_get_fsdp_state") for module in net.modules())


def require_whole(net: nn.Module) -> None:
    """Refuse a spread model where a copy of it has to be led somewhere.

    Raises:
        ModelError: with the way to a whole one.
    """
    if is_spread(net):
        raise ModelError(
            "The model's weights are spread over the ranks by fully_shard(), and forget() needs a copy of them that it "
            "can change. Build the model without fully_shard(), load the weights of torch.distributed.checkpoint."
            "state_dict.get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) into it on every "
            "rank, and forget with that; the Grams fit both."
        )


def reshard(net: nn.Module) -> None:
    """Let go of the weights that a forward pass has gathered and kept (FSDP2 keeps those of the outermost module)."""
    for module in net.modules():
        if hasattr(module, "_get_fsdp_state"):
            module.reshard()  # type: ignore[operator]


def in_step(
    batches: Iterable[tuple[Inputs, Tensor]], what: str, idle: Callable[[Inputs], object]
) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield a rank's batches while the others take theirs; ``idle`` runs the model on a batch without counting it.

    Raises:
        DataError: on every rank, if one has no batch at all.
    """
    last: Inputs = None
    walk = iter(batches)
    while True:
        with together(f"a batch of the {what} data"):
            batch = next(walk, None)
        going = exchange(f"a batch of the {what} data", (batch is not None, last is not None))
        if not any(more for more, _ in going):
            return
        idlers = [other for other, (more, started) in enumerate(going) if not more and not started]
        if idlers:
            raise DataError(
                f"The {what} share of rank {idlers[0]} is empty. A model under fully_shard() runs on all ranks at "
                "once: give every rank at least one batch, or use fewer ranks."
            )
        if batch is None:
            idle(last)
        else:
            last = batch[0]
            yield batch
