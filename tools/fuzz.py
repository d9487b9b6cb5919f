"""Run the programs on generated hostile inputs and say what none of them may do.

    python -m tools.fuzz --examples 1000
    python -m tools.fuzz --kinds checkpoints episodes --seed 1

Every example is a program's own `main` in a fork of its own, on a copy of good files spoiled in
one or two ways. Each complaint is printed with its first example, and with shorter ones as they
are found; the exit status is 1 where there are any.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given

from tests.bad_inputs.forked import Outcome
from tests.bad_inputs.gallery import build_gallery
from tests.bad_inputs.trials import KINDS, Trial

PROGRAM_LINES = 25  # of stderr, shown with a complaint


class Findings:
    """Complaints by what they say and where; prints each with its first trial and shorter ones."""

    def __init__(self) -> None:
        self.shortest: dict[tuple[str, str], str] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.statuses: Counter[int | None] = Counter()

    def note(self, trial: Trial, outcome: Outcome) -> None:
        """Take in what came of a trial."""
        self.statuses[outcome.status] += 1
        for complaint in outcome.complaints():
            key = (trial.program, _where(complaint, outcome.err))
            self.counts[key] += 1
            shown = self.shortest.get(key)
            if shown is None or len(str(trial)) < len(shown):
                self.shortest[key] = str(trial)
                print(f"{key[0]}: {key[1]}\n  {trial}\n{_end(outcome.err)}\n", flush=True)


def _where(complaint: str, err: str) -> str:
    """Return a complaint, of a traceback with the last two places in it."""
    places = [line.strip() for line in err.splitlines() if line.startswith('  File "')]
    kind = complaint.split(":")[0] if places else complaint
    return f"{kind} {' < '.join(reversed(places[-2:]))}"[:400]


def _end(err: str) -> str:
    return "\n".join(f"    | {line[:300]}" for line in err.splitlines()[-PROGRAM_LINES:])


def fuzz(kind: str, gallery: Path, n_examples: int, seed: int) -> Findings:
    """Run examples of one kind."""
    findings = Findings()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(trial=KINDS[kind](gallery))
    def one(trial: Trial) -> None:
        findings.note(trial, trial.run(gallery))

    one()
    return findings


def main() -> int:
    """Run the kinds asked for, print what was found, and return 1 if anything was."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", metavar="N", type=int, default=200, help="of each kind (200)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    has_found = False
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            gallery = build_gallery(Path(folder) / "gallery")
        for kind in arguments.kinds:
            begun = time.perf_counter()
            findings = fuzz(kind, gallery, arguments.examples, arguments.seed)
            seconds = time.perf_counter() - begun
            statuses = ", ".join(f"{n} with status {s}" for s, n in findings.statuses.most_common())
            n_found = len(findings.counts)
            print(
                f"{kind}: {statuses}; {n_found} different complaints; {seconds:.0f} s", flush=True
            )
            has_found |= bool(findings.counts)
    return int(has_found)


if __name__ == "__main__":
    sys.exit(main())
