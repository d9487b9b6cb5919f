"""What an intrinsic reward sees, and how the settings become one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.agent import Agent, Moves
from models.images import Features, unit_images
from models.observations import ObservationBatch, ObservationReader, Observations, Percept
from models.sentence_encoder import SentenceFeatures, load_sentence_encoder
from rewards import curiosity_class
from rewards.curiosity import TEXT, Curiosity, Named, Sight
from utils.errors import UserError


def configured_curiosity(config: Any, agent: Agent, n_actions: int) -> Curiosity | None:
    """Return the intrinsic reward of the settings, its networks fresh; None if there is none.

    Args:
        config: The settings of the run.
        agent: Whose features are seen.
        n_actions: A.

    Raises:
        UserError: there is nothing to see.
    """
    if config.curiosity is None:
        return None
    kind = curiosity_class(config.curiosity)
    features_of = _features_of(config, agent)
    if config.curiosity_text_weight == 0:
        features_of = _without_text(features_of)
    with torch.no_grad():
        example = features_of(_example(agent, config.curiosity_features == "memory"))
    if not example:
        raise UserError(
            f"curiosity_features: {config.curiosity_features} leaves {config.curiosity} nothing to "
            "see here. Choose another, or curiosity_text_weight above 0 where only text is shown"
        )
    shapes = {name: tuple(each.distinct.shape[1:]) for name, each in example.items()}
    curiosity = kind.configured(config, Sight(shapes, n_actions, features_of))
    curiosity.networks.to(agent.device)
    return curiosity


def _features_of(config: Any, agent: Agent) -> Callable[[Moves], Named]:
    """Return how the features that the settings name are had."""
    if config.curiosity_features == "memory":
        return _memory
    own = agent.curiosity_features
    if config.curiosity_features == "agent" and own(_example(agent).observations) is not None:
        return lambda moves: own(moves.observations) or {}
    shown = _Shown(config, agent.reader)
    return lambda moves: shown(moves.observations)


class _Shown:
    """Observations themselves as numbers: pixels from 0 to 1, vectors, what sentences are."""

    def __init__(self, config: Any, reader: ObservationReader) -> None:
        self._sentences: SentenceFeatures | None = None
        if reader.n_texts and config.curiosity_text_weight > 0:
            encoder = load_sentence_encoder(config.sentence_encoder)
            self._sentences = SentenceFeatures(reader.sentences, encoder)

    def __call__(self, observations: ObservationBatch) -> dict[str, Features]:
        kinds = {}
        if observations.images is not None:
            kinds["images"] = observations.images.each(lambda some: unit_images(some.images))
        if observations.vectors is not None:
            kinds["vectors"] = Features(observations.vectors)
        if observations.text is not None and self._sentences is not None:
            kinds[TEXT] = Features(self._sentences(observations.text).flatten(1))
        return kinds


def _memory(moves: Moves) -> dict[str, Features]:
    """Return what a frozen memory has made of all that was seen, which nothing makes stale."""
    assert moves.context is not None, "a reward that reads the memory is given it"
    return {"memory": Features(moves.context)}


def _without_text(features_of: Callable[[Moves], Named]) -> Callable[[Moves], Named]:
    """Return what leaves text out."""
    return lambda moves: {kind: each for kind, each in features_of(moves).items() if kind != TEXT}


def _example(agent: Agent, with_context: bool = False) -> Moves:
    """Return what one observation of nothing looks like, and no step."""
    reader, device = agent.reader, agent.device
    images = vectors = text = context = None
    if reader.image_shape is not None:
        images = torch.zeros(1, *reader.image_shape, dtype=torch.uint8, device=device)
    if reader.n_numbers:
        vectors = torch.zeros(1, reader.n_numbers, device=device)
    if reader.n_texts:
        text = torch.tensor([reader.sentences.numbers(["nothing"] * reader.n_texts)], device=device)
    observations = Observations(images, vectors, text)
    if with_context:
        seen: Any = agent  # of the HELM family, as was checked
        context = seen.peek_context(Percept.first(observations), seen.initial_memory(1))
    none: Tensor = torch.zeros(0, dtype=torch.int64, device=device)
    return Moves(ObservationBatch.of(observations), none, none, none, context)
