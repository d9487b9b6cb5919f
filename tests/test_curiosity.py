"""Intrinsic rewards: the numbers of ELLM's code, features given."""


import pytest
import torch

from models.images import Features
from rewards.apt import ActivePretraining, AptSettings, EllmDynamics
from rewards.curiosity import Experience
from rewards.noveld import NovelD, NovelDSettings
from rewards.rnd import Distillation, RandomNetworkDistillation
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


def experience_of(arrays, update):
    """Return one batch of golden features by our names of kinds, and as is its golden actions."""
    features = golden_data.under(arrays, "features.")
    seen, following = {}, {}
    for name, rows in features.items():
        side = following if name.startswith("next_") else seen
        side[KINDS[name.removeprefix("next_")]] = Features(rows[update])
    actions = arrays["action"][update] if "action" in arrays else torch.zeros(len(rows[update]))
    return Experience(seen, following, actions)


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


def batch_norms(curiosity):
    nets = [net.standardise for net in curiosity.networks.values()]
    return torch.stack([torch.stack((net.mean, net.variance)) for net in nets])


def statistics(curiosity):
    return torch.tensor(list(curiosity.statistics.state_dict().values()), dtype=torch.float64)


@pytest.mark.parametrize("case", RND_CASES)
def test_rnd_and_noveld_reward_and_learn_as_the_original(case):
    arrays, curiosity = golden_rnd(case)
    for update in (0, 1):
        experience = experience_of(arrays, update)
        torch.testing.assert_close(
            batch_norms(curiosity), arrays["batch_norm_before"][update], **WITHIN
        )
        rewards = curiosity.raw_rewards(experience)
        torch.testing.assert_close(rewards, arrays["reward"][update], **WITHIN)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_after"][update], **LOSSES_WITHIN
        )
        torch.testing.assert_close(
            batch_norms(curiosity), arrays["batch_norm_after_reward"][update], **WITHIN
        )
        logged = curiosity.learn(experience)
        torch.testing.assert_close(logged["loss"], arrays["loss"][update], **LOSSES_WITHIN)
        torch.testing.assert_close(
            batch_norms(curiosity), arrays["batch_norm_after_update"][update], **WITHIN
        )
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
        networks[tag] = EllmDynamics(weights[0].shape[1:], widths, 4)
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
        experience = experience_of(arrays, update)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_before"][update], **LOSSES_WITHIN
        )
        rewards = curiosity.raw_rewards(experience)
        torch.testing.assert_close(rewards, arrays["reward"][update], **WITHIN)
        torch.testing.assert_close(
            statistics(curiosity), arrays["running_after"][update], **LOSSES_WITHIN
        )
        forwards, inverse = (sum(each) for each in curiosity.errors(experience))
        torch.testing.assert_close(forwards, arrays["forward_error"][update], **LOSSES_WITHIN)
        torch.testing.assert_close(inverse, arrays["inverse_error"][update], **LOSSES_WITHIN)
        logged = curiosity.learn(experience)
        torch.testing.assert_close(logged["loss"], arrays["loss"][update], **LOSSES_WITHIN)
        after = parameters(arrays, f"after_{update + 1}.")
        found = curiosity.networks.state_dict()
        assert after.keys() == found.keys()
        for name, value in after.items():
            torch.testing.assert_close(found[name], value, **PARAMETERS_WITHIN)
