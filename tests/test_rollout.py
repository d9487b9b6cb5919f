import pytest
import torch

from models.agent import Step
from models.observations import Observations
from tests.agents import percept
from trainers.learner import Transition
from trainers.rollout import Rollout, check_rollout_fits
from utils.errors import UserError


def numbered_rollout(n_steps=4, n_envs=3, keeps_following=False):
    """Return a rollout with the sample number n * T + t as actions and images."""
    images = torch.zeros(n_envs, 1, 2, 2, dtype=torch.uint8)
    example = Observations(images), torch.zeros(n_envs, 1)
    rollout = Rollout(n_steps, *example, keeps_following=keeps_following)
    nowhere, nothing = torch.zeros(n_envs, dtype=torch.bool), torch.zeros(n_envs)
    for t in range(n_steps):
        numbers = torch.arange(n_envs) * n_steps + t
        step = Step(numbers, numbers[:, None].float(), nothing, nothing)
        observations = numbers.byte()[:, None, None, None].expand(n_envs, 1, 2, 2)
        seen, after = (percept(observations + n, nowhere) for n in (0, 100))
        ended = nothing, nowhere, nowhere
        rollout.store(Transition(seen, step, *ended, after, seen, memory=None, info={}))
    return rollout


def test_sequences_are_cut_at_episode_starts_and_at_the_rollouts_ends():
    rollout = numbered_rollout()
    rollout.is_first[2, 0] = True  # environment 0: 2 + 2 steps
    rollout.is_first[0, 1] = True  # an episode that opens with the rollout cuts nothing more
    rollout.is_first[3, 2] = True  # environment 2: 3 + 1 steps
    sequences = rollout.sequences
    assert sequences.firsts.tolist() == [0, 2, 4, 8, 11]
    assert sequences.lengths.tolist() == [2, 2, 4, 3, 1]
    assert sequences.context_len.tolist() == [0] * 5


def test_transitions_lead_to_what_followed_and_to_its_context():
    rollout = numbered_rollout(n_steps=3, n_envs=2, keeps_following=True)
    rollout.continues[0, 1] = 0.0
    rollout.stored_states_at_ends[0, 1] = rollout.stored_states_at_ends[2] = -1
    steps = rollout.transitions()
    before = [0, 3, 1, 4, 2, 5]  # by step, then environment
    seen = steps.observations.images[:, 0, 0, 0].tolist()
    assert seen == before + [100 + number for number in before]
    assert steps.actions.tolist() == before
    # Where the episode goes on within the rollout the next step has the stored state.
    assert steps.stored_state[:, 0].tolist() == [*before, 1, -1, 2, 5, -1, -1]


def test_a_sequence_shows_the_steps_of_its_episode_before_the_rollout():
    first, second = numbered_rollout(), numbered_rollout()
    first.is_first[1, 0] = True  # environment 0: three steps before, environment 1: four, 2: none
    second.is_first[0, 2] = True
    second.is_first[2, 1] = True
    second.past = first.past_of_next(n_context=4)
    assert second.sequences.context_len.tolist() == [3, 4, 0, 0]
    assert second.past_of_next(n_context=6).context_len().tolist() == [6, 2, 4]
    batch = second.sequence_batch(torch.tensor([0, 2, 3]))
    seen = [1, 2, 3, 0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert batch.observations.images[:, 0, 0, 0].tolist() == seen
    assert batch.stored_state[:, 0].tolist() == seen
    assert batch.actions.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert (batch.lengths.tolist(), batch.context_len.tolist()) == ([4, 2, 4], [3, 0, 0])


def test_a_rollout_that_no_memory_holds_is_refused(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4, "SC_PHYS_PAGES": 20}[name])
    check_rollout_fits(2, 10, (2, 2, 1), "cpu")
    with pytest.raises(UserError, match="the 2x2x1 images of 2 x 11 steps"):
        check_rollout_fits(2, 11, (2, 2, 1), "cpu")
