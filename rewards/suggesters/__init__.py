"""Suggesters of goals, found by name (rules.py has their base class)."""

from rewards.settings import SUGGESTER_READS
from utils.settings import Registry

SUGGESTERS = Registry(
    "suggester",
    {
        "silent": "rewards.suggesters.rules:Silent",
        "oracle": "rewards.suggesters.rules:Oracle",
        "novelty": "rewards.suggesters.rules:Novelty",
        "language-model": "rewards.suggesters.language_model:LanguageModelSuggester",
        "server": "rewards.suggesters.server:ServerSuggester",
        "yes-no": "rewards.suggesters.household:YesNoSuggester",
    },
    "suggester",
    SUGGESTER_READS,
)
