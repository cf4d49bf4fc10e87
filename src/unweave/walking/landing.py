"""Where a request ends: the search between two looks for the one at the target, and the ending in words."""

from __future__ import annotations

from dataclasses import dataclass

from unweave.result import so_many
from unweave.walking.descent import EpochReport
from unweave.walking.walk import Seen, Walk

MOST = 0.5
"""Margins must have gone this share of their way where few samples' error was right from the first, and where a walk
whose error is right cannot go on."""
LANDING_STEPS = 16
"""Bisections between two looks; each halves the segment."""


@dataclass(frozen=True)
class Ending:
    """Why the loop ended."""

    words: str
    ok: bool


class Landing(Walk):
    """A walk that knows when it is there, and says so."""

    def _nothing_to_do(self, start: Seen) -> Ending | None:
        """The ending of a request that must not take a step."""
        if self.config.stop in ("epochs", "paper"):  # those have rules of their own
            return None
        gap = self.goal.gap(start.look.forget_error)
        if self._may_get_better(start):
            return None
        if self.goal.met(start.outcomes) or (self.config.stop == "chance" and gap > 0):
            return self._already_there(start)
        return None

    def _may_get_better(self, start: Seen) -> bool:
        """Wrong labels that are hardly followed may hide what samples look like: held-out ones can tell."""
        return self.config.stop == "poison" and self.val is not None and start.look.forget_error < 100

    def _already_there(self, start: Seen) -> Ending:
        return Ending(f"Already there: the forget error is {self._versus(start)}; nothing was changed.", ok=True)

    def _land(self, low: Seen, high: Seen, best: Seen) -> tuple[Ending, Seen]:
        """Bisect the segment between a look below the target and one above it."""
        left, right, epoch = 0.0, 1.0, self.history[-1].epoch
        best = safe = self._better(self._better(best, low), high)
        for _ in range(LANDING_STEPS):
            if abs(self.goal.gap(best.look.forget_error)) <= 50.0 / len(self.samples):
                break
            middle = (left + right) / 2
            self.descent.between(low.state, high.state, middle)
            seen = self.look(epoch, EpochReport(self.history[-1].loss, self.history[-1].lr), with_val=False)
            if seen is None:
                break
            best = self._better(best, seen)
            if self.goal.gap(seen.look.forget_error) < 0:
                left = middle
            else:
                right = middle
        self.descent.restore(best.state)
        final = self.look(epoch, EpochReport(self.history[-1].loss, self.history[-1].lr))
        if final is None or self._collapsed(final.look):
            return self._give_up(safe)
        return self._end_at(final)

    def _better(self, one: Seen, other: Seen) -> Seen:
        """The look whose error is nearer to the target; of two alike, the one whose margins are."""
        return min(one, other, key=lambda s: (abs(self.goal.gap(s.look.forget_error)), s.look.distance))

    # ------------------------------------------------------------------------------------------------------ endings

    def _versus(self, seen: Seen) -> str:
        return f"{seen.look.forget_error:.2f} %, the target {self.goal}"

    def _end_at(self, seen: Seen) -> tuple[Ending, Seen]:
        """End at a look, which may be as far as it got."""
        return (self._landed(seen) if self._arrived(seen) else self._not_reached(seen)), seen

    def _arrived(self, seen: Seen) -> bool:
        """Whether the error is right; of few samples it may have been before, and then the margins must tell."""
        if not self.goal.reached(seen.look.forget_error):
            return False
        first = self.history[0]
        as_before = self.goal.few and self.goal.reached(first.forget_error) and first.distance > self.goal.near
        return not as_before or self._left(seen) <= 1 - MOST

    def _left(self, seen: Seen) -> float:
        """The share of the way that is left."""
        whole = self.history[0].distance
        return seen.look.distance / whole if whole else 0.0

    def _landed(self, seen: Seen) -> Ending:
        words = f"Landed after {so_many(seen.look.epoch, self.config)}"
        return Ending(f"{words}: the forget error is {self._versus(seen)}.", ok=True)

    def _not_reached(self, best: Seen) -> Ending:
        words = f"Target not reached: the forget error is {self._versus(best)}"
        if self.goal.reached(best.look.forget_error):
            words += f", but its margins have gone {100 * (1 - self._left(best)):.0f} % of the way"
        remedy = "Lower gamma, or allow more epochs or layers, and start from the original model and Grams"
        return Ending(f"{words}; returned to the best weights seen (epoch {best.look.epoch}). {remedy}.", ok=False)

    def _give_up(self, best: Seen) -> tuple[Ending, Seen]:
        """End where it was best: done if the error is right there and margins have gone most of their way."""
        if self.goal.margins is not None and self._arrived(best) and self._left(best) <= 1 - MOST:
            words = f"Landed after {so_many(best.look.epoch, self.config)}: the forget error is {self._versus(best)}"
            gone = f"its margins have gone {100 * (1 - self._left(best)):.0f} % of the way"
            return Ending(f"{words}; {gone}, and farther steps did harm and were undone.", ok=True), best
        since = f"every step from epoch {self.history[-1].epoch} on did harm"
        words = f"Collapse: {since}, and the shortest that was tried {self._fault}"
        came_to = f"{self.history[-1].forget_error:.2f} %, the target {self.goal}"
        kept = f"returned to the best weights seen (epoch {best.look.epoch}), forget error {self._versus(best)}"
        kept = kept if best.look.epoch else f"nothing was changed; the forget error had come to {came_to}"
        return Ending(f"{words}; {kept}. {self._gentler()}.", ok=False), best

    def _gentler(self) -> str:
        """What may help where steps do harm."""
        config = self.config
        ideas = ["to leave lr out"] if config.lr is not None else []
        hard = any(self.descent.space.layers[name].hard for name in self.descent.weights)
        harder = hard and config.protect != "soft"  # a layer of single directions is hard whatever was asked
        ideas += ["protect='soft'"] if harder and config.task != "poison" else ["another gamma"]
        ideas += ["a larger max_damage, which accepts more harm"] if self._ruined else []
        ideas += ["to leave out samples whose labels are right after all"] if config.task == "poison" else []
        return f"What may help: {'; '.join(ideas)}"

    def _without_a_step(self, start: Seen) -> Ending:
        """The ending where no step helps: few samples may be as near as they can come, wrong labels be gone."""
        if self._may_get_better(start) and self.goal.reached(start.look.forget_error):
            return self._already_there(start)
        near = self.goal.few and start.look.distance <= self.goal.near
        if near and self.goal.reached(start.look.forget_error):
            words = f"Already there, as near as a step could bring it: the forget error is {self._versus(start)}"
            return Ending(f"{words}; nothing was changed.", ok=True)
        return Ending(self._nowhere_to_go(), ok=False)

    def _can_move(self) -> bool:
        """Whether the retained data has left any direction to move in."""
        return any(not self.descent.space.layers[name].full for name in self.descent.weights)

    def _nowhere_to_go(self) -> str:
        full = not self._can_move()
        why = "the retained data uses every direction of these layers" if full else "no step brought it nearer"
        return f"Nothing was changed: {why}. Lower gamma, or let more layers move."
