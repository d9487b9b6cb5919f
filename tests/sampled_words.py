"""SHELM as a user changes it: it reads words drawn among those most like the image."""

import torch

from models import helm
from models.observation_to_language import TokenRetrieval


class SampledRetrieval(TokenRetrieval):
    """Each of the K words is drawn from the K most similar ones."""

    def read(self, encoded):
        shape = encoded.shape[:2]
        drawn = torch.multinomial(torch.ones(shape, device=encoded.device), shape[1], True)
        return super().read(encoded.gather(1, drawn[..., None].expand_as(encoded)))


class CachedDraw(TokenRetrieval):
    """The same at the place where each result is kept with its image."""

    def forward(self, images):
        encoded = super().forward(images)
        return encoded[:, torch.randint(encoded.shape[1], encoded.shape[1:2])]


class SHELM(helm.Shelm):
    retrieval: type[TokenRetrieval] = SampledRetrieval

    @classmethod
    def to_language(cls, *given):
        plain = helm.Shelm.to_language(*given)
        plain.__class__ = cls.retrieval  # the shortest way to another method of the same table
        return plain


class SHELMOfCachedDraws(SHELM):
    retrieval = CachedDraw
