import pytest
import torch

from models.agent import Step
from models.observations import Observations
from tests.agents import percept
from trainers.learner import Transition
from trainers.rollout import Rollout, check_rollout_fits
from utils.errors import UserError


def numbered_rollout(n_steps=4, n_envs=3, **keeps):
    """Return a rollout with the sample number n * T + t as actions and images."""
    images = torch.zeros(n_envs, 1, 2, 2, dtype=torch.uint8)
    example = Observations(images), torch.zeros(n_envs, 1)
    rollout = Rollout(n_steps, *example, **keeps)
    nowhere, nothing = torch.zeros(n_envs, dtype=torch.bool), torch.zeros(n_envs)
    for t in range(n_steps):
        numbers = torch.arange(n_envs) * n_steps + t
        step = Step(numbers, numbers[:, None].float(), nothing, nothing)
        observations = numbers.byte()[:, None, None, None].expand(n_envs, 1, 2, 2)
        seen, after = (percept(observations + n, nowhere) for n in (0, 100))
        ended = nothing, nowhere, nowhere
        rollout.store(Transition(seen, step, *ended, after, seen, memory=None, info={}))
    return rollout


def test_transitions_lead_to_what_followed_and_to_its_context():
    rollout = numbered_rollout(3, 2, keeps_following=True, keeps_states_after=True)
    rollout.continues[0, 1] = 0.0
    rollout.stored_states_at_ends[0, 1] = rollout.stored_states_at_ends[2] = -1
    steps = rollout.transitions()
    before = [0, 3, 1, 4, 2, 5]  # by step, then environment
    seen = steps.observations.images[:, 0, 0, 0].tolist()
    assert seen == before + [100 + number for number in before]
    assert steps.actions.tolist() == before
    # Where the episode goes on within the rollout the next step has the stored state.
    assert steps.stored_state[:, 0].tolist() == [*before, 1, -1, 2, 5, -1, -1]


def test_a_reward_that_reads_no_stored_state_costs_no_copy_of_it():
    steps = numbered_rollout(3, 2, keeps_following=True).transitions()
    assert len(steps.observations.images) == 12
    assert steps.stored_state.shape == (12, 0)


def test_a_rollout_that_no_memory_holds_is_refused(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4, "SC_PHYS_PAGES": 20}[name])
    check_rollout_fits(2, 10, (2, 2, 1), "cpu")
    with pytest.raises(UserError, match="the 2x2x1 images of 2 x 11 steps"):
        check_rollout_fits(2, 11, (2, 2, 1), "cpu")


def test_the_past_reaches_back_to_the_first_step_of_the_oldest_running_episode():
    rollout = numbered_rollout(n_steps=5, n_envs=2)
    rollout.is_first[2, 0] = rollout.is_first[3, 1] = True
    past = rollout.past_of_next(4)
    assert past.is_first.tolist() == [[True, False], [False, True], [False, False]]
    assert past.stored_state[:, 0, 0].tolist() == [2, 3, 4]
    assert len(rollout.past_of_next(2).is_first) == 2
    rollout.is_first[:] = False
    assert len(rollout.past_of_next(4).is_first) == 4
