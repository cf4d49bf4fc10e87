"""Processes that run the same jobs in one folder share them: each takes a bundle that nobody else is at.

A bundle is the jobs of one request and seed, which share a network and its Grams, or all trials of a request, each of
which goes where the ones before sent it. One process does a bundle in its order; the next one that is free takes the
next. A job that needs others first is left for later while they are not done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from experiments.running.alone import claimed
from experiments.running.jobs import Job

PAUSE = 0.5
"""Seconds between two looks at what others are at."""


def bundle_of(name: str) -> str:
    """SETTING/CASE/METHOD/SEED → SETTING/CASE/SEED; of a trial, whose last part is no seed, its folder."""
    *folders, leaf = name.split("/")
    return "/".join([*folders[:2], leaf] if leaf.isdigit() else folders)


def shared(
    jobs: Sequence[Job],
    is_done: Callable[[str], bool],
    claims: Path,
    say: Callable[[str], None] = print,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Job]:
    """The jobs to be done by this process, one by one, until all are done, by whomever.

    Args:
        jobs: the same for all processes; one that needs others (``after``) waits for those of them that are in here.
        is_done: whether there is an outcome of a name.
        claims: a folder for what processes are at. Who dies lets go of it, and others take it up.
        say: told once when there is nothing left but to wait.
        is_over: asked while waiting, whether to wait no longer.
    """
    names, told = {job.name for job in jobs}, False
    left = list(jobs)
    while left := [job for job in left if not is_done(job.name)]:
        taken = False
        for bundle in dict.fromkeys(bundle_of(job.name) for job in left):
            with claimed(claims / f"{bundle}.lock") as mine:
                for job in left if mine else ():
                    ready = all(is_done(name) for name in job.after if name in names)
                    if bundle_of(job.name) == bundle and ready and not is_done(job.name):
                        taken = True
                        yield job
        if taken:
            continue
        if not told:
            say("nothing left to begin: waiting for what other processes are at")
            told = True
        if is_over():
            return
        time.sleep(PAUSE)
