"""What a Python program does while a run trains: look at metrics, end it, choose its episodes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from utils.environments import State
from utils.errors import ENDINGS, UserError, error_text


class Callback:
    """Objects of derived classes are given to `helm.train`; each method does nothing by default."""

    def after_update(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """Return True to end the run here: a checkpoint is written, and it can be resumed.

        Args:
            step: Environment steps so far.
            metrics: The row of metrics.csv, NaN where nothing is known.
        """
        return None

    def before_episode(self, env: int) -> dict[str, Any] | None:
        """Return options for the reset of this environment, beside those of `reset_options`."""
        return None

    def state_dict(self) -> State:
        """Return a state for a resumed run: numbers, texts, tensors, lists, dictionaries."""
        return {}

    def load_state_dict(self, state: State) -> None:
        return


class Callbacks:
    """Those of a run, in order; of options with one name the last one's count."""

    def __init__(self, given: Iterable[Callback] = ()) -> None:
        self._all = list(given)
        for each in self._all:
            if not isinstance(each, Callback):
                raise UserError(
                    f"callbacks: {type(each).__name__} is no callback. Derive the class from "
                    "helm.Callback, and give an object of it"
                )
        self.names = [type(each).__name__ for each in self._all]
        default = Callback.before_episode
        self.choose_episodes = any(type(each).before_episode is not default for each in self._all)

    def after_update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Tell all of them; return whether one of them ends the run."""
        ends = False
        for each in self._all:
            with _telling(each):
                # A copy each: none changes what the next one gets.
                ends |= bool(each.after_update(step, dict(metrics)))
        return ends

    def before_episode(self, env: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for each in self._all:
            with _telling(each):
                options |= each.before_episode(env) or {}
        return options

    def state_dict(self) -> State:
        return {"names": self.names, "states": [each.state_dict() for each in self._all]}

    def restore(self, state: State | None) -> list[str]:
        """Restore their states; return the differences from the run so far, in words."""
        before = [] if state is None else state["names"]
        # States go by the order of the callbacks: with others they belong to nobody.
        if before != self.names:
            here, there = (", ".join(names) or "none" for names in (self.names, before))
            return [f"callbacks: {here} instead of {there}"]
        for each, own in zip(self._all, state["states"] if state else [], strict=True):
            with _telling(each):
                each.load_state_dict(own)
        return []


@contextmanager
def _telling(callback: Callback) -> Iterator[None]:
    try:
        yield
    except (UserError, *ENDINGS):
        raise
    except Exception as error:  # whatever its author did
        raise UserError(
            f"callbacks: {type(callback).__name__} raised {error_text(error)}. Mend it, then "
            "go on with helm.resume"
        ) from error
