"""Frees programs that were compiled for their bytes."""

import dataclasses
from collections.abc import Iterable

from .candidate import Candidate
from .emit import emit
from .solve import Workbench


def let_go(benches: Iterable[Workbench]) -> None:
    """Frees the executables of workbenches; what was measured stays.

    JAX keeps an executable as long as the function that it was made of. On CPU each
    takes hundreds of memory mappings, and Linux allows a process 65,530: some fifty of
    a large step, and LLVM fails. A program that is wanted again is compiled again.
    """
    for bench in benches:
        bench.baseline = dataclasses.replace(
            bench.baseline, function=bench.step.as_written(), compiled=None
        )
        bench.candidates[:] = map(_without_program, bench.candidates)


def _without_program(candidate: Candidate) -> Candidate:
    function = emit(candidate.profile, candidate.positions, candidate.in_stages)
    return dataclasses.replace(candidate, function=function, compiled=None)
