"""A decoder that scores phrases as one would write it first: each read after the whole prompt."""

from collections.abc import Sequence

import torch

from models.language.model_files import ModelFiles


class PlainTextModel:
    """The transformers library's model, one phrase at a time."""

    def __init__(self, published: ModelFiles) -> None:
        from transformers import AutoModelForCausalLM

        folder = published.find("config.json").parent
        self.published = published
        self.model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()

    @torch.no_grad()
    def phrase_log_probabilities(self, prompt: str, phrases: Sequence[str]) -> list[float]:
        """Return of each phrase the mean log-probability of its tokens after the prompt."""
        n_prompt = len(self.published.tokenize(prompt))
        scores = []
        for phrase in phrases:
            ids = torch.tensor([self.published.tokenize(prompt + phrase)])
            log_probs = self.model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
            told = log_probs[0, n_prompt - 1 : -1].gather(1, ids[0, n_prompt:, None])
            scores.append(float(told.mean()))
        return scores
