"""The loop of a request: which way to walk, and how far."""

from __future__ import annotations

import math

from unweave.errors import ModelError
from unweave.result import Look
from unweave.walking.descent import EpochReport
from unweave.walking.landing import Ending, Landing
from unweave.walking.solving import Solving
from unweave.walking.walk import LEAST_STEP, Seen

PATIENCE = 3
"""De-poisoning stops after this many looks in a row with a worse validation error than the best …"""
SAME_VAL = 0.5
"""… where this many points are no difference."""
CALM = 0.98
"""An epoch is calm when it leaves more than this share of the distance …"""
CALM_EPOCHS = 2
"""… and matching has settled down after so many in a row, or when an epoch led away; then the step shrinks."""
SETTLED = 0.1
"""… and is done when this share of the first distance is left: a retrained model varies by more than that."""
NEARER = 0.9
"""A solved step that leaves more than this share of the distance goes too far and is halved …"""
LEAST_SHARE = 1 / 32
"""… down to this share of itself …"""
STRAIGHT = 0.25
"""… and one that leaves at most this share went so straight that the next goes by the same J and K."""
NUDGES = 24
"""Epochs at most to bring the error to its target once the margins are at theirs."""


class Request(Landing):
    """One request, from the first look to the ending."""

    # ------------------------------------------------------------------------------------------------ the whole

    def run(self) -> tuple[Ending, Look]:
        """Carry the request out; the descent's network holds the weights to hand back afterwards."""
        start = self.look(0, EpochReport(float("nan"), 0.0))
        if start is None:
            raise ModelError("The model's outputs on the forget set are not finite. Check its weights.")
        self.history.append(start.look)
        self._see_what_is_left()
        nothing_to_do = self._nothing_to_do(start)
        if nothing_to_do is not None:
            return nothing_to_do, start.look
        if self._solving is not None:
            self.size = float(self._can_move())
        elif self.descent.weights:
            self.size = self.config.lr or self._choose_size(start)
        self._first_size = self.size
        if self.size == 0.0:
            return self._without_a_step(start), start.look
        order = self._order.get_state()
        ending, last = self._until_the_end(start)
        if self._ruined and not self._watching:
            # Nobody looked at the validation set on the way, and the end is a ruin: again, with open eyes.
            self._order.set_state(order)
            self._begin_again(start)
            ending, last = self._until_the_end(start)
        return ending, last.look

    def _until_the_end(self, start: Seen) -> tuple[Ending, Seen]:
        """Walk by the strategy of the task, and see how the validation set stands at the end."""
        if self._solving is not None:
            ending, last = self._solve(start, self._solving)
        elif self.goal.margins is not None:
            ending, last = self._match(start)
        elif self.config.stop == "paper":
            ending, last = self._papers_rule(start)
        elif self.config.stop in ("epochs", "poison"):
            ending, last = (self._run_on if self.config.stop == "epochs" else self._repair)(start)
        else:
            ending, last = self._until_crossed(start)
        self.descent.restore(last.state)
        if self.val is None or last.look.val_error is not None:
            return ending, last
        final = self.look(last.look.epoch, EpochReport(last.look.loss, last.look.lr))
        if final is None:  # it was finite a moment ago
            raise ModelError("The model's outputs on the validation set are not finite. Check its weights.")
        self._collapsed(final.look)
        if self.history[-1] is last.look:
            self.history[-1] = final.look
        return ending, final

    def _begin_again(self, start: Seen) -> None:
        """Back to the first look, to look at the validation set after every epoch from now on."""
        self._watching, self._ruined = True, False
        self.history[:] = self.history[:1]
        self.size = self._first_size
        self.descent.restore(start.state)
        self.descent.reset_moments()
        self._aim_at(self.goal)

    def _epochs_left(self) -> int:
        return self.config.epochs - self.config.idle_first_epoch - self.history[-1].epoch

    # ------------------------------------------------------------------------------------------- four strategies

    def _match(self, start: Seen) -> tuple[Ending, Seen]:
        """Descend until the margins have settled at their targets, then land the error."""
        best, now, calm = start, start, 0
        while self._epochs_left():
            after = self._advance(now)
            if after is None:
                return self._give_up(best)
            calm = calm + 1 if after.look.distance > CALM * now.look.distance else 0
            settled = calm == CALM_EPOCHS or after.look.distance > now.look.distance
            now = after
            best = self._better(best, now)
            if self.config.lr is None and settled:
                self.size, calm = self.size / 2, 0
            if now.look.distance < SETTLED * start.look.distance or self.size < self._first_size / 32:
                break
        return self._matched(now, best)

    def _solve(self, start: Seen, solving: Solving) -> tuple[Ending, Seen]:
        """Solve for the margins, from where that led again, until they are at their targets; then land the error."""
        best = now = start
        solving.look_anew()
        while self._epochs_left() and self.size >= LEAST_SHARE:
            after = self._advance(now)
            if after is None:
                return self._give_up(best)
            if after.look.distance > NEARER * now.look.distance:
                self._undo_step(now)  # margins are not linear as far as that
                continue
            straight = after.look.distance <= STRAIGHT * now.look.distance
            now, self.size = after, min(1.0, 2 * self.size)
            best = self._better(best, now)
            arrived = now.look.distance < SETTLED * start.look.distance
            if arrived or straight:  # a nudge goes by what is there
                solving.keep()
            else:
                solving.look_anew()
            if arrived:
                break
        return self._matched(now, best)

    def _matched(self, now: Seen, best: Seen) -> tuple[Ending, Seen]:
        """The margins are as near to their targets as they come: see to the error."""
        if self.goal.reached(now.look.forget_error):
            return self._end_at(now if self._arrived(now) else best)
        return self._nudge(now, best)

    def _nudge(self, now: Seen, best: Seen) -> tuple[Ending, Seen]:
        """Margins fit but the error is off by some samples: move all targets a little until the error crosses."""
        sign = -1.0 if self.goal.gap(now.look.forget_error) < 0 else 1.0
        shift = max(0.25 * now.look.distance, 0.02)
        self.size = max(self.size, self._first_size / 8)
        for _ in range(min(NUDGES, self._epochs_left())):
            self._aim_at(self.goal.shifted(sign * shift))
            after = self._advance(now)
            if after is None:
                return self._give_up(best)
            best = self._better(best, after)
            if sign * self.goal.gap(after.look.forget_error) <= 0 or self.goal.reached(after.look.forget_error):
                low, high = (now, after) if sign < 0 else (after, now)
                return self._land(low, high, best)
            now, shift = after, shift * 1.5
            self.size = min(1.25 * self.size, self._first_size)
        return self._end_at(best)

    def _until_crossed(self, start: Seen) -> tuple[Ending, Seen]:
        """Descend until the forget error crosses the target, then search between the last two looks."""
        best, now = start, start
        far = max(3 * self.goal.tolerance, 0.25 * abs(self.goal.gap(start.look.forget_error)))
        while self._epochs_left():
            after = self._advance(now)
            if after is None:
                return self._give_up(best)
            jump = after.look.forget_error - now.look.forget_error
            if self.config.lr is None and jump > far and self.size > self._first_size / 32:
                self._undo(now, 0.5)
                continue
            best = self._better(best, after)
            if self.goal.gap(after.look.forget_error) > 0:
                return self._land(now, after, best)
            if self.goal.met(after.outcomes):
                return self._end_at(after)
            if self.config.lr is None and now.look.distance - after.look.distance <= 0.03 * start.look.distance:
                self.size *= 1.5
            now = after
        return self._end_at(best)

    def _run_on(self, start: Seen) -> tuple[Ending, Seen]:
        """Run all epochs and keep the last weights."""
        now = start
        while self._epochs_left():
            after = self._advance(now)
            if after is None:
                return self._give_up(now)
            slow = now.look.distance - after.look.distance <= 0.03 * start.look.distance
            self._pace(slow, self.goal.reached(after.look.forget_error))
            now = after
        words = f"All {now.look.epoch} epochs were run, as asked: the forget error is"
        return Ending(f"{words} {now.look.forget_error:.2f} %.", ok=True), now

    def _repair(self, start: Seen) -> tuple[Ending, Seen]:
        """Away from wrong labels, until going on costs more than it brings.

        Kept is the latest look at the target whose validation error is as good as the best; where the target was
        reached from the first, only one that made it better.
        """
        there = self.goal.reached(start.look.forget_error)
        now, chosen, least, worse = start, start if there else None, _val(start) if there else math.inf, 0
        while self._epochs_left():
            after = self._advance(now)
            if after is None and not there:
                return self._give_up(chosen or self._worth_keeping(now, start))
            if after is None:
                break
            reached = self.goal.reached(after.look.forget_error)
            self._pace(now.look.distance - after.look.distance <= 0.03 * start.look.distance, reached)
            now = after
            if reached:
                least = min(least, _val(now))
                good = _val(now) <= least + SAME_VAL
                better = not there or _val(now) < _val(start) - SAME_VAL
                chosen, worse = now if good and better else chosen, 0 if good else worse + 1
                if self.val is None or worse == PATIENCE or now.look.forget_error == 100:
                    break
        if there and chosen is start:
            return self._already_there(start), start
        return self._end_at(chosen or now)

    def _worth_keeping(self, now: Seen, start: Seen) -> Seen:
        """Where a walk that cannot go on is; where it began, if half of the wrong labels are still there, or if
        held-out samples have come to be wrong in place of right."""
        if self.val is None:
            return now
        gained, way = now.look.forget_error - start.look.forget_error, -self.goal.gap(start.look.forget_error)
        return now if gained >= 0.5 * way and _val(now) <= _val(start) + SAME_VAL else start

    def _pace(self, slow: bool, reached: bool) -> None:
        """Longer steps on the way to the target if it goes slowly; shorter ones beyond it."""
        if self.config.lr is None and slow and not reached:
            self.size *= 1.2
        elif self.config.lr is None and reached and self.config.stop == "epochs":
            self.size = max(0.8 * self.size, 2 * LEAST_STEP * self._first_size)

    def _papers_rule(self, start: Seen) -> tuple[Ending, Seen]:
        """Stop when the forget error exceeds the validation error of the same moment; keep the nearer of two looks."""
        gap = _gap_to_val(start.look)
        if gap > 0:
            return Ending(
                "Unchanged: the forget error exceeds the validation error before the first step.", False
            ), start
        now = start
        while self._epochs_left():
            after = self._advance(now)
            if after is None:
                return self._give_up(start)
            if _gap_to_val(after.look) > 0:
                kept = min((now, after), key=lambda seen: abs(_gap_to_val(seen.look)))
                words = (
                    f"The forget error passed the validation error at epoch {after.look.epoch}; kept the nearer look"
                )
                return Ending(f"{words}, epoch {kept.look.epoch}.", ok=kept is not start), kept
            now = after
        words = f"The forget error never passed the validation error in {self.config.epochs} epochs"
        return Ending(f"{words}; by the authors' rule the weights from before the request are kept.", False), start


def _val(seen: Seen) -> float:
    return math.inf if seen.look.val_error is None else seen.look.val_error


def _gap_to_val(look: Look) -> float:
    assert look.val_error is not None
    return look.forget_error - look.val_error
