"""Intrinsic rewards: the numbers of ELLM's code, features given."""

import math
from functools import partial
from hashlib import blake2b

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.agent import Transitions
from models.observations import ObservationBatch, Observations
from rewards import curiosity as rewards
from rewards.curiosity import E3B, ActivePretraining, Distillation, NovelD
from rewards.settings import NovelDSettings
from tests import golden_data
from tests.test_suggesters import settings

KINDS = {"joint": "images", "image": "images", "text": "text"}
CASES = [("rnd", case) for case in ("image", "image_text", "noveld", "noveld_image")]
CASES += [("apt", case) for case in ("image", "image_text")]


def steps_of(arrays, update):
    """Return golden features before and after each step by our names of kinds, and the actions."""
    features = golden_data.under(arrays, "features.")
    seen, following = {}, {}
    for name, rows in features.items():
        side = following if name.startswith("next_") else seen
        side[KINDS[name.removeprefix("next_")]] = rows[update]
    actions = arrays["action"][update] if "action" in arrays else torch.zeros(len(rows[update]))
    return seen, following, actions


def parameters(arrays, prefix):
    found = {}
    for name, value in golden_data.under(arrays, prefix).items():
        tag, part, number, kind = name.split(".")
        part = "forwards" if part == "forward" else part
        found[f"{KINDS[tag]}.{part}.layers.{number}.{kind}"] = value
    return found


def golden(file, case):
    """Return the arrays of a golden case, and the reward with its networks and settings."""
    arrays = golden_data.under(golden_data.load(f"ellm/{file}"), f"{case}.")
    rate, text_weight, third, fourth, _ = arrays["settings"].tolist()
    changes = {"curiosity_learning_rate": rate, "curiosity_text_weight": text_weight}
    if file == "apt":
        kind, part = ActivePretraining, "encoder"
        network = partial(rewards.Dynamics, n_actions=4, as_ellm=True)
        changes |= {"apt_neighbours": int(third), "apt_clip": fourth}
        config = settings(rewards.AptSettings, **changes)
    else:
        kind, part = NovelD if fourth else rewards.RandomNetworkDistillation, "target"
        network = Distillation
        config = settings(NovelDSettings, noveld_alpha=third, **changes)
    before, networks = parameters(arrays, "before."), {}
    for tag in dict.fromkeys(name.split(".")[0] for name in before):
        layers = [value for name, value in before.items() if name.startswith(f"{tag}.{part}.")]
        weights = [layer for layer in layers if layer.ndim > 1]
        networks[tag] = network(weights[0].shape[1:], tuple(map(len, weights)))
    curiosity = kind(config, networks, dict)
    curiosity.networks.load_state_dict(curiosity.networks.state_dict() | before)
    return arrays, curiosity


def close(found, expected, within=1e-5, relative=1e-5):
    torch.testing.assert_close(found, expected, atol=within, rtol=relative)


@pytest.mark.parametrize(("file", "case"), CASES)
def test_rewards_and_learning_are_those_of_the_original(file, case):
    arrays, curiosity = golden(file, case)
    for update in range(len(arrays["reward"])):
        before, after, actions = steps_of(arrays, update)
        close(curiosity.rewards(before, after), arrays["reward"][update], relative=0)
        statistics = list(curiosity.statistics.state_dict().values())
        close(torch.tensor(statistics, dtype=torch.float64), arrays["running_after"][update])
        if file == "apt":
            errors = [net(before[k], after[k], actions) for k, net in curiosity.networks.items()]
            forwards, inverse = (sum(each) for each in zip(*errors, strict=True))
            close(forwards, arrays["forward_error"][update])
            close(inverse, arrays["inverse_error"][update])
        close(curiosity.learn(before, after, actions)["loss"], arrays["loss"][update])
        found, learned = curiosity.networks.state_dict(), parameters(arrays, f"after_{update + 1}.")
        assert learned
        for name, value in learned.items():
            close(found[name], value, 2e-5, relative=0)


def rnd(shapes, seed=0, kind=rewards.RandomNetworkDistillation, **changes):
    """Return a small RND that sees features as they are."""
    torch.manual_seed(seed)
    changes = {"curiosity_width": 16, "curiosity_learning_rate": 1e-2} | changes
    config = settings(NovelDSettings, **changes)
    return kind(config, kind.networks_for(config, shapes, 3), dict)


def seen(**kinds):
    """Return the features before and after steps that stay where they are."""
    return kinds, kinds


def test_what_has_been_learned_from_is_less_novel_than_what_has_not():
    torch.manual_seed(1)
    known, unknown = torch.randn(20, 6), torch.randn(20, 6)
    curiosity, taken = rnd({"vectors": (6,)}), []
    for _ in range(100):
        curiosity.learn(*seen(vectors=known), torch.zeros(20))
    rewards = curiosity.rewards(*seen(vectors=torch.cat((known, unknown))))
    assert rewards[20:].mean() > 5 * rewards[:20].mean()
    curiosity.optimizer.register_step_post_hook(lambda *_: taken.append(1))
    curiosity.n_batches = 50  # there are as many parts as steps at most
    curiosity.learn(*seen(vectors=known), torch.zeros(20))
    assert len(taken) == 20


def test_text_counts_with_its_weight_in_the_reward_alone():
    torch.manual_seed(1)
    rows = {"images": torch.randn(8, 4), "text": torch.randn(8, 4)}
    both, none = (rnd(dict.fromkeys(rows, (4,)), curiosity_text_weight=w) for w in (1.0, 0.0))
    images = both.errors(seen(**rows)[0])["images"]
    novelty = none.rewards(*seen(**rows)) * none.statistics.variance**0.5
    torch.testing.assert_close(novelty, images, atol=1e-5, rtol=1e-5)
    losses = [each.losses(*seen(**rows), torch.zeros(8))["loss"] for each in (both, none)]
    assert losses[0] == losses[1]


def apt(**changes):
    torch.manual_seed(0)
    config = settings(rewards.AptSettings, curiosity_width=8, **changes)
    networks = ActivePretraining.networks_for(config, {"vectors": (4,)}, 3)
    return ActivePretraining(config, networks, dict)


def test_neighbours_are_looked_for_in_groups_of_a_large_batch():
    rows = torch.randn(20, 4)
    small, large = (apt(apt_group=n, apt_neighbours=5) for n in (7, 20))
    for curiosity in (small, large):
        assert curiosity.rewards(*seen(vectors=rows)).shape == (20,)
        assert curiosity.statistics.count == pytest.approx(20 * 5, abs=1e-3)
    # Three groups of seven at most: distances are larger where fewer are near.
    assert small.statistics.mean > large.statistics.mean
    assert apt().rewards(*seen(vectors=torch.ones(16, 4))).tolist() == [0.0] * 16


def e3b(**changes):
    torch.manual_seed(0)
    config = settings(rewards.E3BSettings, curiosity_width=8, **changes)
    networks = E3B.networks_for(config, {"vectors": (4,)}, 3)
    return E3B(config, networks, lambda seen, _: {"vectors": seen.selected.vectors})


@pytest.mark.parametrize(
    ("curiosity", "loss"), [(partial(apt, curiosity_icm="paper"), "inverse_loss"), (e3b, "loss")]
)
def test_an_inverse_model_learns_which_action_was_taken(curiosity, loss):
    curiosity = curiosity(curiosity_learning_rate=1e-2)
    torch.manual_seed(0)
    actions, before = torch.randint(3, (64,)), torch.randn(64, 4)
    after = before + torch.eye(4)[actions]
    steps = {"vectors": before}, {"vectors": after}, actions
    first = curiosity.losses(*steps)[loss]
    assert first.item() == pytest.approx(math.log(3), abs=1.5)
    for _ in range(200):
        curiosity.learn(*steps)
    assert curiosity.losses(*steps)[loss] < 0.1


@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_e3b_pays_for_what_an_episode_has_not_shown(size):
    """Two environments, two rollouts, saved in between; few observations, which come again."""
    known, n_steps = size * torch.randn(3, 4), 20
    begins = torch.rand(2 * n_steps, 2) < 0.1
    begins[[0, n_steps]] = torch.tensor([[True, True], [False, False]])
    drawn = known[torch.randint(3, (2 * n_steps + 1, 2))]
    before, after = drawn[:-1].clone(), drawn[1:]
    before[begins] = size * torch.randn(int(begins.sum()), 4)  # reset: shown by no step
    told = {"curiosity_learning_rate": 0.0, "task_reward_weight": 0.0, "curiosity_weight": 1.0}
    phi, expected, covariances = e3b().networks["vectors"].encoder, [], [None, None]
    for t in range(2 * n_steps):
        for env in range(2):
            if begins[t, env]:
                first = phi(before[t, env]).double()
                covariances[env] = 0.1 * torch.eye(8) + first.outer(first)
            code = phi(after[t, env]).double()
            expected.append(code @ torch.linalg.inv(covariances[env]) @ code)
            covariances[env] = covariances[env] + code.outer(code)
    for envs in ([0, 1], [1]):  # another environment changes nothing
        found, state = [], e3b().state_dict()
        for rows in (slice(0, n_steps), slice(n_steps, None)):
            reward = e3b(**told)
            reward.load_state_dict(state)
            shown = torch.cat([each[rows, envs].flatten(0, 1) for each in (before, after)])
            batch, nothing = ObservationBatch(Observations(vectors=shown)), torch.zeros(len(shown))
            n = len(shown) // 2
            steps = Transitions(batch, nothing, nothing[:n].long(), nothing[:n], begins[rows, envs])
            found.append(reward(steps)[0].view(n_steps, -1) * reward.statistics.variance**0.5)
            state = reward.state_dict()
        close(torch.cat(found), torch.stack(expected).float().view(-1, 2)[:, envs], relative=1e-4)


@pytest.mark.parametrize("shown", [{"images"}, {"images", "vectors"}, {"vectors"}])
def test_noveld_hashes_all_bytes_of_the_rows_of_a_batch(shown):
    images, vectors = torch.randint(2, (9, 1, 1, 2), dtype=torch.uint8), torch.rand(9, 1).round()
    kinds = {"images": images, "vectors": vectors}
    rows = torch.randint(9, (20,))
    batch = ObservationBatch(Observations(**{name: kinds[name] for name in shown}), rows)
    texts = [b"".join(kinds[name][n].numpy().tobytes() for name in sorted(shown)) for n in rows]
    expected = [int.from_bytes(blake2b(text, digest_size=8).digest()) for text in texts]
    assert rewards.observation_hashes(batch) == expected


STEPS = st.lists(st.tuples(st.booleans(), *[st.integers(0, 3)] * 2), min_size=2)


@pytest.mark.slow
@given(STEPS, st.integers(0, 9))
def test_noveld_can_pay_the_first_visit_in_an_episode_alone(course, cut):
    """Each step of two environments: whether an episode begins, its first number, the next."""
    seen, following, expected, visited = [], [], [], [set(), set()]
    course = [(n < 2 or begins, *shown) for n, (begins, *shown) in enumerate(course * 2)]
    for number, (begins, first, reached) in enumerate(course):
        env = number % 2
        seen.append(first if begins else following[number - 2])
        following.append(reached)
        visited[env] = {first} if begins else visited[env]
        expected.append(float(reached not in visited[env]))
        visited[env].add(reached)
    found, state = [], None
    for rows in (slice(0, 2 * cut), slice(2 * cut, None)):  # two rollouts, saved in between
        config = settings(NovelDSettings, noveld_first_visit=True)
        reward = NovelD(config, {"vectors": Distillation((1,), [1])}, None)
        if state is not None:
            reward.load_state_dict(state)
        shown = torch.tensor(seen[rows] + following[rows], dtype=torch.float32)[:, None]
        is_first = torch.tensor([step[0] for step in course[rows]]).bool()
        batch = ObservationBatch(Observations(vectors=shown))
        is_first = is_first.view(len(is_first) // 2, 2)
        paid = torch.ones(is_first.numel())
        steps = Transitions(batch, shown, paid.long(), paid, is_first)
        found += reward.restricted(paid, steps).tolist()
        state = reward.state_dict()
    assert found == expected
