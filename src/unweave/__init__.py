"""unweave takes training samples back out of a trained PyTorch network without the training set.

grams  = unweave.fit(model, train_loader, val=val_loader)        # once, after training
result = unweave.forget(model, forget_loader, grams)             # any time later
"""

from unweave.starting import interruptible

with interruptible():
    from unweave import distributed, errors, layers
    from unweave.config import ForgetConfig
    from unweave.fit import fit
    from unweave.forget import forget
    from unweave.grams import LayerGrams
    from unweave.ranks.shard import shard
    from unweave.request.classes import drop_classes
    from unweave.result import ForgetResult, Look
    from unweave.space import CoreSpace

__version__ = "0.1.0"

__all__ = [
    "CoreSpace",
    "ForgetConfig",
    "ForgetResult",
    "LayerGrams",
    "Look",
    "distributed",
    "drop_classes",
    "errors",
    "fit",
    "forget",
    "layers",
    "shard",
]
