"""Unlearning objectives: from logits [N, C] and labels [N] to one number to descend.

| objective | task    | descends                                                                                       |
|-----------|---------|------------------------------------------------------------------------------------------------|
| match     | samples | smooth-L1 distance of each margin to the margin a held-out sample of its class has at its rank |
| match     | classes | −Σ q log p + ½ κ mean (log r − log q)²: q the original model's softmax over the classes that   |
|           |         | stay, r the same of the changing model, κ = ``odds``                                           |
| match     | poison  | −log p_z: z what the original model says where the wrong label is no choice                    |
| paper     | samples | −log(1 − p_y + ε) − λ H(p): away from the label; λ > 0 spreads the output, λ < 0 sharpens it   |
| paper     | classes | the same                                                                                       |
| paper     | poison  | −log(1 − p_y + ε) − λ H(q), q the softmax without the poisoned label; λ < 0 there              |

A model that never saw a class takes its samples for what they resemble. What they resemble the original model knows: it
is what it says where the class is no choice (the target of DELETE, Zhou et al., CVPR 2025). The paper's loss spreads
these outputs instead (λ > 0), which retained samples that resemble them feel. −Σ q log p hardly minds the many classes
that q gives next to nothing; with κ > 0 the odds among all that stay are held where they were.

A wrong label that is known by heart hides what a sample looks like: the second choice. By the paper's loss the changing
model decides on the way for which other label (λ < 0); z is decided before the first step.

The paper's text and code maximise the entropy for λ > 0, as here; its printed equation has the other sign, which is
``lam < 0`` here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unweave.behaviour.outcomes import entropy, margin


def match_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Mean smooth-L1 distance between the margins and their targets [N]."""
    return F.smooth_l1_loss(margin(logits, labels), targets.to(logits.dtype))


def elsewhere_loss(logits: Tensor, among_others: Tensor, odds: float = 0.0) -> Tensor:
    """Mean cross-entropy against what was said without the forgotten classes, log q [N, C] as :func:`among` has it.

    With ``odds``, so many times half the mean square by which log-probabilities among the classes that stay are off is
    added.
    """
    loss = -(among_others.exp() * logits.log_softmax(1)).sum(1).mean()
    if odds == 0:
        return loss
    gone = among_others.isneginf()
    now = logits.masked_fill(gone, float("-inf")).log_softmax(1)
    off = now.masked_fill(gone, 0.0) - among_others.masked_fill(gone, 0.0)
    return loss + 0.5 * odds * (off.square().sum(1) / (~gone).sum(1)).mean()


def among(logits: Tensor, classes: Tensor) -> Tensor:
    """The logarithm of the softmax over some of the classes alone, [N, C]: −inf for the others."""
    left_out = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    left_out[classes] = False
    return logits.masked_fill(left_out, float("-inf")).log_softmax(1)


def second_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """The class [N] with the largest logit among those that are not the sample's label."""
    return logits.scatter(1, labels[:, None], float("-inf")).argmax(1)


def reverse_cross_entropy(logits: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Mean of −log(1 − p_y + ε); its gradient in p_y is at most 1/ε.

    1 − p_y is summed over the other classes: as a difference it would lose all digits where p_y ≈ 1.
    """
    others = logits.log_softmax(1).scatter(1, labels[:, None], float("-inf"))
    return -torch.log(others.exp().sum(1) + eps).mean()


def paper_loss(logits: Tensor, labels: Tensor, lam: float, eps: float) -> Tensor:
    """The paper's loss for removing samples and classes."""
    return reverse_cross_entropy(logits, labels, eps) - lam * entropy(logits).mean()


def poison_loss(logits: Tensor, labels: Tensor, lam: float, eps: float) -> Tensor:
    """The paper's loss for de-poisoning: leave the poisoned label, and (λ < 0) decide for one of the others."""
    # By columns rather than by a mask, whose size a GPU would have to tell the host before it goes on.
    columns = torch.arange(logits.shape[1] - 1, device=logits.device)
    others = logits.gather(1, columns + (columns >= labels[:, None]))
    return reverse_cross_entropy(logits, labels, eps) - lam * entropy(others).mean()
