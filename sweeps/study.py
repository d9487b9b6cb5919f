"""Optuna: which values to try next, whether to go on with a run, and what mattered."""

from collections.abc import Mapping
from typing import Any

from sweeps.space import Dimension, Range

SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "asha", "none")
STARTUP = 5  # trials that come to their end before any is cut by the median
WARMUP = 25  # percent of a run before which the median cuts none
FIRST_RUNG, REDUCTION = 10, 3  # ASHA looks at 10, 30 and 90 percent, and a third goes on
LEAST_FINISHED = 5  # trials, before it is asked what mattered


class Study:
    """A study in memory; what has been tried before is told to it anew.

    The values of a trial follow from the seed, the trial's number and what has been told until
    then, so that a study goes on as if it had never been interrupted.

    Args:
        dimensions: What each searched setting is drawn from.
        sampler, pruner: Their names.
        seed: Of all that is drawn.
    """

    def __init__(
        self, dimensions: Mapping[str, Dimension], sampler: str, pruner: str, seed: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sampler, self._seed = sampler, seed
        self._distributions = {name: _distribution(each) for name, each in dimensions.items()}
        self._study = optuna.create_study(direction="maximize", pruner=_pruner(pruner))
        self._n_asked = 0

    def ask(self, values: Mapping[str, Any] | None = None) -> Any:
        """Return the next trial; its `params` are the values to try.

        Args:
            values: Those it had before; None to have them drawn.
        """
        import numpy as np

        words = np.random.SeedSequence((self._seed, self._n_asked)).generate_state(1)
        self._study.sampler = _sampler(self._sampler, int(words[0]))
        self._n_asked += 1
        if values is not None:
            self._study.enqueue_trial(dict(values))
        return self._study.ask(self._distributions)

    def report(self, trial: Any, percent: int, value: float) -> bool:
        """Note the value of a trial at some percent of its run; return whether to cut it there."""
        trial.report(value, percent)
        return trial.should_prune()

    def tell(self, trial: Any, score: float | None, pruned: bool = False) -> None:
        """Note the end of a trial; one without a score has failed."""
        from optuna.trial import TrialState

        if pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        elif score is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, score)

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


def _distribution(dimension: Dimension) -> Any:
    from optuna import distributions

    if not isinstance(dimension, Range):
        return distributions.CategoricalDistribution(dimension.values)
    if isinstance(dimension.low, int):
        high = int(dimension.high)
        return distributions.IntDistribution(dimension.low, high, log=dimension.log)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _sampler(name: str, seed: int) -> Any:
    from optuna import samplers

    kinds = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}
    return kinds[name](seed=seed)


def _pruner(name: str) -> Any:
    from optuna import pruners

    if name == "median":
        return pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=WARMUP)
    if name == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=FIRST_RUNG, reduction_factor=REDUCTION)
    return pruners.NopPruner()
