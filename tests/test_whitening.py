"""The language model's hidden state, whitened for the heads."""

import torch

from models import build_agent
from models.helm import FLOOR, RunningWhitening
from tests import agents, test_off_policy_agents
from tests.agents import small_config, spaces
from tests.counting import CountingEnv
from tests.tiny_clip import tiny_settings


def rows_with_a_faint_cue(n):
    """Return rows [n, 6], and the cue of each, with a share of the variance below a thousandth."""
    cues = torch.randint(0, 2, (n,)) * 2.0 - 1
    loud, faint = torch.linalg.qr(torch.randn(6, 6)).Q[:2]
    return 5 + 3 * torch.randn(n, 1) * loud + 0.05 * cues[:, None] * faint, cues


def test_whitened_rows_are_uncorrelated_and_a_faint_cue_is_as_loud_as_the_rest():
    rows, cues = rows_with_a_faint_cue(4096)
    whitening = RunningWhitening(6)
    for batch in rows.split(64):
        whitening.update(batch)
    exact = rows.double()
    covariance = exact.T.cov(correction=0)
    torch.testing.assert_close(whitening.scatter / whitening.count, covariance)
    torch.testing.assert_close(whitening.mean, exact.mean(0))
    variances, directions = torch.linalg.eigh(
        covariance + FLOOR * covariance.trace() / 6 * torch.eye(6)
    )
    expected = (exact - exact.mean(0)) @ directions @ variances.rsqrt().diag() @ directions.T
    torch.testing.assert_close(whitening(rows), expected.float(), atol=1e-4, rtol=1e-4)

    def share(of):
        between = (of[cues > 0].mean(0) - of[cues < 0].mean(0)) / 2
        return (between.square().sum() / of.var(0).sum()).item()

    assert share(rows) < 1e-3
    assert share(whitening(rows)) > 50 * share(rows)


def test_the_matrix_is_computed_where_the_number_of_rows_has_doubled():
    whitening, rows = RunningWhitening(6), torch.randn(64, 6)
    assert torch.equal(whitening(rows), rows)
    changes = []
    for n, row in enumerate(rows, 1):
        before = whitening.matrix.clone()
        whitening.update(row[None])
        if not torch.equal(whitening.matrix, before):
            changes.append(n)
    assert changes == [8, 16, 32, 64]


def test_ppo_learns_from_the_whitened_states_that_acted():
    tiny = tiny_settings("HELM") | {"n_envs": 4, "n_rollout_steps": 8, "whiten_memory": True}
    config = small_config(model="HELM", **tiny)
    agent = build_agent(config, *spaces())
    whitening = agent.frozen_memory.whitening
    collector = agents.collecting(config, agent, CountingEnv([3, 50, 17, 9]))
    for _ in range(3):
        rollout = agents.collect_rollout(collector)
        agents.assert_learned_as_acted(agent, rollout)
        collector.learner.update(0.0)
    assert whitening.count == 3 * 32
    agent.eval()
    agents.collect_rollout(agents.collecting(config, agent, CountingEnv([3, 50, 17, 9])))
    assert whitening.count == 3 * 32


def test_replay_keeps_plain_states_which_the_present_matrix_whitens():
    collector = test_off_policy_agents.collecting("HELM", whiten_memory=True)
    learner = collector.learner
    for _ in range(40):
        collector.step()
    body = learner.agent.body
    sequences = learner.replay.sequences(learner.replay.start_rows[:3])
    whitened = body.language.whitening(sequences.stored_state)
    assert not torch.allclose(whitened, sequences.stored_state, atol=0.1)
    features = body.unroll(sequences)
    assert torch.equal(features[..., : body.language.width], whitened)
    assert learner.target.body.language.whitening is body.language.whitening
