"""Intrinsic rewards: the numbers of ELLM's code, features given."""

import math

import pytest
import torch

from rewards.curiosity import (
    ActivePretraining,
    AptSettings,
    Distillation,
    Dynamics,
    NovelD,
    NovelDSettings,
    RandomNetworkDistillation,
)
from settings.declaration import declared
from tests import golden_data

KINDS = {"joint": "images", "image": "images", "text": "text"}
WITHIN = {"atol": 1e-5, "rtol": 0}
PARAMETERS_WITHIN = {"atol": 2e-5, "rtol": 0}
LOSSES_WITHIN = {"atol": 1e-5, "rtol": 1e-5}
RND_CASES = ("image", "image_text", "noveld", "noveld_image")
APT_CASES = ("image", "image_text")


def values_of(config_class, **changes):
    """Return settings with the defaults beside the code but for some."""
    defaults = {name: each.metadata["default"] for name, each in declared([config_class]).items()}
    return config_class(**(defaults | changes))


def steps_of(arrays, update):
    """Return golden features before and after each step by our names of kinds, and the actions."""
    features = golden_data.under(arrays, "features.")
    seen, following = {}, {}
    for name, rows in features.items():
        side = following if name.startswith("next_") else seen
        side[KINDS[name.removeprefix("next_")]] = rows[update]
    actions = arrays["action"][update] if "action" in arrays else torch.zeros(len(rows[update]))
    return seen, following, actions


def loaded(curiosity, arrays, prefix):
    """Fill networks with golden parameters."""
    curiosity.networks.load_state_dict(
        curiosity.networks.state_dict() | parameters(arrays, prefix), strict=True
    )
    return curiosity


def parameters(arrays, prefix):
    found = {}
    for name, value in golden_data.under(arrays, prefix).items():
        tag, part, number, kind = name.split(".")
        part = "forwards" if part == "forward" else part
        found[f"{KINDS[tag]}.{part}.layers.{number}.{kind}"] = value
    return found


def golden_rnd(case):
    arrays = golden_data.under(golden_data.load("ellm/rnd"), f"{case}.")
    rate, text_weight, alpha, is_noveld, _ = arrays["settings"].tolist()
    before = parameters(arrays, "before.")
    tags = sorted({name.split(".")[0] for name in before})
    networks = {}
    for tag in tags:
        weights = [before[f"{tag}.target.layers.{number}.weight"] for number in range(3)]
        networks[tag] = Distillation(weights[0].shape[1:], [len(each) for each in weights])
    config = values_of(
        NovelDSettings,
        curiosity_learning_rate=rate,
        curiosity_text_weight=text_weight,
        noveld_alpha=alpha,
    )
    kind = NovelD if is_noveld else RandomNetworkDistillation
    return arrays, loaded(kind(config, networks, dict), arrays, "before.")


def statistics(curiosity):
    return torch.tensor(list(curiosity.statistics.state_dict().values()), dtype=torch.float64)


@pytest.mark.parametrize("case", RND_CASES)
def test_rnd_and_noveld_reward_and_learn_as_the_original(case):
    arrays, curiosity = golden_rnd(case)
    for update in (0, 1):
        steps = steps_of(arrays, update)
        rewards = curiosity.rewards(*steps[:2])
        torch.testing.assert_close(rewards, arrays["reward"][update], **WITHIN)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_after"][update], **LOSSES_WITHIN
        )
        logged = curiosity.learn(*steps)
        torch.testing.assert_close(logged["loss"], arrays["loss"][update], **LOSSES_WITHIN)
        after = parameters(arrays, f"after_{update + 1}.")
        found = curiosity.networks.state_dict()
        for name, value in after.items():
            torch.testing.assert_close(found[name], value, **PARAMETERS_WITHIN)


def golden_apt(case):
    arrays = golden_data.under(golden_data.load("ellm/apt"), f"{case}.")
    rate, text_weight, n_neighbours, clip, _ = arrays["settings"].tolist()
    before = parameters(arrays, "before.")
    networks = {}
    for tag in dict.fromkeys(name.split(".")[0] for name in before):
        weights = [before[f"{tag}.encoder.layers.{number}.weight"] for number in range(2)]
        widths = tuple(len(each) for each in weights)
        networks[tag] = Dynamics(weights[0].shape[1:], widths, 4, as_ellm=True)
    config = values_of(
        AptSettings,
        curiosity_learning_rate=rate,
        curiosity_text_weight=text_weight,
        apt_neighbours=int(n_neighbours),
        apt_clip=clip,
    )
    return arrays, loaded(ActivePretraining(config, networks, dict), arrays, "before.")


@pytest.mark.parametrize("case", APT_CASES)
def test_apt_rewards_and_learns_as_the_original(case):
    arrays, curiosity = golden_apt(case)
    for update in (0, 1):
        steps = steps_of(arrays, update)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_before"][update], **LOSSES_WITHIN
        )
        rewards = curiosity.rewards(*steps[:2])
        torch.testing.assert_close(rewards, arrays["reward"][update], **WITHIN)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_after"][update], **LOSSES_WITHIN
        )
        before, after, actions = steps
        errors = [net(before[k], after[k], actions) for k, net in curiosity.networks.items()]
        forwards, inverse = (sum(each) for each in zip(*errors, strict=True))
        torch.testing.assert_close(forwards, arrays["forward_error"][update], **LOSSES_WITHIN)
        torch.testing.assert_close(inverse, arrays["inverse_error"][update], **LOSSES_WITHIN)
        logged = curiosity.learn(*steps)
        torch.testing.assert_close(logged["loss"], arrays["loss"][update], **LOSSES_WITHIN)
        after = parameters(arrays, f"after_{update + 1}.")
        found = curiosity.networks.state_dict()
        assert after.keys() == found.keys()
        for name, value in after.items():
            torch.testing.assert_close(found[name], value, **PARAMETERS_WITHIN)


def rnd(shapes, seed=0, kind=RandomNetworkDistillation, **changes):
    """Return a small RND that sees features as they are."""
    torch.manual_seed(seed)
    changes = {"curiosity_width": 16, "curiosity_learning_rate": 1e-2} | changes
    config = values_of(NovelDSettings, **changes)
    return kind(config, kind.networks_for(config, shapes, 3), dict)


def seen(**kinds):
    """Return the features before and after steps that stay where they are."""
    return kinds, kinds


def test_what_has_been_learned_from_is_less_novel_than_what_has_not():
    torch.manual_seed(1)
    known, unknown = torch.randn(20, 6), torch.randn(20, 6)
    curiosity = rnd({"vectors": (6,)})
    for _ in range(100):
        curiosity.learn(*seen(vectors=known), torch.zeros(20))
    rewards = curiosity.rewards(*seen(vectors=torch.cat((known, unknown))))
    assert rewards[20:].mean() > 5 * rewards[:20].mean()


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
    config = values_of(AptSettings, curiosity_width=8, **changes)
    networks = ActivePretraining.networks_for(config, {"vectors": (4,)}, 3)
    return ActivePretraining(config, networks, dict)


def test_neighbours_are_looked_for_in_groups_of_a_large_batch():
    rows = torch.randn(20, 4)
    small, large = (apt(apt_group=n, apt_neighbours=5) for n in (7, 20))
    assert large.rewards(*seen(vectors=rows)).shape == (20,)
    assert large.statistics.count == pytest.approx(20 * 5, abs=1e-3)
    # Three groups of seven at most: distances are larger where fewer are near.
    small.rewards(*seen(vectors=rows))
    assert small.statistics.count == pytest.approx(20 * 5, abs=1e-3)
    assert small.statistics.mean > large.statistics.mean


def test_steps_that_are_all_alike_are_paid_nothing():
    assert apt().rewards(*seen(vectors=torch.ones(16, 4))).tolist() == [0.0] * 16


def test_the_papers_icm_learns_which_action_was_taken_and_what_comes_of_it():
    torch.manual_seed(0)
    curiosity = apt(icm="paper", curiosity_learning_rate=1e-2)
    actions, before = torch.randint(3, (64,)), torch.randn(64, 4)
    after = before + torch.eye(4)[actions]
    steps = {"vectors": before}, {"vectors": after}, actions
    first = curiosity.losses(*steps)["inverse_loss"]
    assert first.item() == pytest.approx(math.log(3), abs=1.5)
    for _ in range(200):
        curiosity.learn(*steps)
    assert curiosity.losses(*steps)["inverse_loss"] < 0.1


def test_a_batch_is_cut_into_as_many_parts_as_there_are_steps_at_most():
    curiosity = rnd({"vectors": (4,)})
    parts = curiosity._parts(5, 8, torch.device("cpu"))
    assert sorted(int(part) for part in parts) == [0, 1, 2, 3, 4]
    (whole,) = curiosity._parts(5, 1, torch.device("cpu"))
    assert whole.tolist() == [0, 1, 2, 3, 4]
