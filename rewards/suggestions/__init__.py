"""Suggesters of goals: one file each, found by name.

A suggester is a class that satisfies `Suggester`, with three things more:

    reads                                   the classes of the settings that it alone reads
    configured(config, action_names)        one for environments whose actions are called so
    checks_success                          whether its goals are paid for success alone
"""

from settings import Registry

SILENT = "silent"
ASKING = ("language-model", "server", "yes-no")  # they ask a language model
SUGGESTERS = Registry(
    "suggester",
    {
        SILENT: "rewards.suggestions.suggester:Silent",
        "oracle": "rewards.suggestions.oracle:Oracle",
        "novelty": "rewards.suggestions.novelty:Novelty",
        "language-model": "rewards.suggestions.language_model:LanguageModelSuggester",
        "server": "rewards.suggestions.server:ServerSuggester",
        "yes-no": "rewards.suggestions.yes_no:YesNoSuggester",
    },
    "suggester",
)
