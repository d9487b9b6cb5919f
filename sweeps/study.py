"""Optuna: which values to try next, whether to go on with a run, and what mattered."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeps.space import Dimension, Range
from utils.errors import UserError, printable

JOURNAL = "journal.log"
NAME = "search"  # of the one study in a journal
SEARCHED = "searched"  # its attribute that says what is searched
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "asha", "none")
STARTUP = 5  # trials that come to their end before any is cut by the median
WARMUP = 25  # percent of a run before which the median cuts none
FIRST_RUNG, REDUCTION = 10, 3  # ASHA looks at 10, 30 and 90 percent, and a third goes on
LEAST_FINISHED = 5  # trials, before it is asked what mattered


class Study:
    """The trials of a search, kept in a journal in its folder; without a folder, in memory alone.

    The values of a trial follow from the seed, the trial's number and what has been told until
    then, so that a study goes on as if it had never been interrupted.

    Args:
        dimensions: What each searched setting is drawn from.
        sampler, pruner: Their names.
        seed: Of all that is drawn.
        folder: The search's.

    Raises:
        UserError: the journal in the folder cannot be read.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        sampler: str,
        pruner: str,
        seed: int,
        folder: Path | None = None,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._dimensions, self._sampler, self._seed = dimensions, sampler, seed
        try:
            self._storage = _journal(folder) if folder else optuna.storages.InMemoryStorage()
            if not self._storage.get_all_studies():
                optuna.create_study(study_name=NAME, storage=self._storage, direction="maximize")
            self._study = optuna.load_study(
                study_name=NAME, storage=self._storage, pruner=_pruner(pruner)
            )
        except Exception as error:  # Optuna documents no set of exceptions for a bad file
            reason = printable(f"{type(error).__name__}: {error}")
            raise UserError(f"{folder}/{JOURNAL}: not readable as a search: {reason}") from None

    @property
    def trials(self) -> list[Any]:
        """Return all trials as they are known, by number."""
        return self._study.get_trials(deepcopy=False)

    @property
    def searched(self) -> dict[str, Any]:
        """Return the noted description of the search, nothing where there is none."""
        return self._study.user_attrs.get(SEARCHED, {})

    def note_searched(self, searched: Mapping[str, Any]) -> None:
        """Note what is searched, for later calls to compare."""
        self._study.set_user_attr(SEARCHED, dict(searched))

    def ask(self) -> Any:
        """Return a new trial; its `params` are the values to try."""
        self._seed_sampler(len(self.trials), 0)
        return self._with_all_values(self._study.ask())

    def taken_up(self, number: int) -> Any:
        """Return an unfinished trial of an earlier call, which may have been killed as it drew."""
        from optuna.trial import Trial

        study = self._storage.get_study_id_from_name(NAME)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        return self._with_all_values(Trial(self._study, trial))

    def report(self, trial: Any, percent: int, value: float) -> bool:
        """Note the value of a trial at some percent of its run; return whether to cut it there."""
        if percent not in self.trials[trial.number].intermediate_values:
            trial.report(value, percent)
        return trial.should_prune()

    def tell(self, trial: Any, score: float) -> None:
        """Note the score of a trial."""
        self._study.tell(trial, score)

    def tell_pruned(self, trial: Any) -> None:
        """Note that a trial is not worth going on with."""
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.PRUNED)

    def tell_failed(self, trial: Any, reason: str) -> None:
        """Note why a trial can have no score, unless its end is known."""
        from optuna.trial import TrialState

        if self.trials[trial.number].state.is_finished():
            return
        trial.set_user_attr("reason", reason)
        self._study.tell(trial, state=TrialState.FAIL)

    def importances(self) -> dict[str, float]:
        """Return the share of each setting in how scores differ; empty where that is not known.

        It is that of fANOVA (Hutter et al. 2014), over finished trials.
        """
        from optuna import importance
        from optuna.trial import TrialState

        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        scores = [trial.value for trial in finished]
        if len(scores) < LEAST_FINISHED or len(set(scores)) == 1:
            return {}
        evaluator = importance.FanovaImportanceEvaluator(seed=self._seed)
        found = importance.get_param_importances(self._study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

    def _seed_sampler(self, number: int, place: int) -> None:
        """Let a value of a trial depend on its place, not on how many were drawn before."""
        import numpy as np
        from optuna import samplers

        kinds = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}
        words = np.random.SeedSequence((self._seed, number, place)).generate_state(1)
        self._study.sampler = kinds[self._sampler](seed=int(words[0]))

    def _with_all_values(self, trial: Any) -> Any:
        """Return a trial whose every value is drawn; a value that it has stays."""
        self._seed_sampler(trial.number, 0)
        together = trial.relative_params
        for place, (name, dimension) in enumerate(self._dimensions.items(), 1):
            if name not in together:
                self._seed_sampler(trial.number, place)
            if not isinstance(dimension, Range):
                trial.suggest_categorical(name, dimension.values)
            elif isinstance(dimension.low, int):
                trial.suggest_int(name, dimension.low, int(dimension.high), log=dimension.log)
            else:
                trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)
        return trial


def unlock(folder: Path) -> None:
    """Take away the lock that a killed search has left on its journal.

    Args:
        folder: The search's, of which no other process has the lock.
    """
    (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)


def _journal(folder: Path) -> Any:
    """Return the storage in a search's folder; its lock holds on disks that machines share, too."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path = str(folder / JOURNAL)
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


def _pruner(name: str) -> Any:
    from optuna import pruners

    if name == "median":
        return pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)
    if name == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=REDUCTION)
    return pruners.NopPruner()
