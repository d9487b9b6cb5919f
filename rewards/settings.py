"""The settings of intrinsic rewards, goals and their suggesters."""

# Apart from the code that reads them: a program shows its help and refuses a wrong setting without
# waiting for PyTorch.

import logging
from collections.abc import Collection
from dataclasses import dataclass, fields

from models.settings import DEFAULT_ENCODER, SentenceSettings
from utils.errors import raise_any
from utils.settings import Config, Part, needless, setting

log = logging.getLogger(__name__)

TASK, SUBGOALS, REWARD_LAST = KINDS = ("task", "subgoals", "reward-last")
SAME_TEXT = "same-text"
EFFECT = "effect"
SCORING, WRITING = "scoring", "writing"
SURVIVAL = "survival"
MANY_TREES = 5  # chopped for a deforestation
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
# An agent waits for answers, or plays on without goals or with the last ones.
FOR_ANSWERS, NO_GOALS, LAST_GOALS = "for-answers", "no-goals", "last-goals"
CHAT, COMPLETIONS = "chat", "completions"
END_RUN, NO_SUGGESTIONS = "end-run", "no-suggestions"
KEY_VARIABLE = "OPENAI_API_KEY"

_TABLE = ("chop tree", "chop tree", "place crafting table")
_WOOD_PICKAXE = (*_TABLE, "make wood pickaxe")
_STONE_PICKAXE = (*_WOOD_PICKAXE, "mine stone", "make stone pickaxe")
_IRON = (*_STONE_PICKAXE, "mine stone", "place furnace", "mine coal", "mine iron")
_IRON_PICKAXE = (*_IRON, "make iron pickaxe")
# The subgoals of each task, the last of which is the task itself.
TASKS: dict[str, tuple[str, ...]] = {
    "eat plant": ("chop grass", "place plant", "eat plant"),
    "attack zombie": ("attack zombie",),
    "attack skeleton": ("attack skeleton",),
    "attack cow": ("attack cow",),
    "chop tree": ("chop tree",),
    "mine stone": (*_WOOD_PICKAXE, "mine stone"),
    "mine coal": (*_WOOD_PICKAXE, "mine coal"),
    "mine iron": (*_STONE_PICKAXE, "mine iron"),
    "mine diamond": (*_IRON_PICKAXE, "mine diamond"),
    "drink water": ("drink water",),
    "chop grass": ("chop grass",),
    "sleep": ("sleep",),
    "place stone": (*_WOOD_PICKAXE, "mine stone", "place stone"),
    "place crafting table": ("chop tree", "place crafting table"),
    "place furnace": (*_WOOD_PICKAXE, *("mine stone",) * 4, "place furnace"),
    "place plant": ("chop grass", "place plant"),
    "make wood pickaxe": _WOOD_PICKAXE,
    "make stone pickaxe": _STONE_PICKAXE,
    "make iron pickaxe": _IRON_PICKAXE,
    "make wood sword": (*_TABLE, "make wood sword"),
    "make stone sword": (*_WOOD_PICKAXE, "mine stone", "make stone sword"),
    "make iron sword": (*_IRON, "make iron sword"),
    "plant row": ("chop grass", "place plant", "chop grass", "plant grass"),
    "chop grass with wood pickaxe": (*_WOOD_PICKAXE, "chop grass with wood pickaxe"),
    "vegetarianism": ("drink water", "chop grass"),
    "make workshop": ("chop tree", "place crafting table") * 2,
    SURVIVAL: (SURVIVAL,),
    "deforestation": ("chop tree",) * MANY_TREES,
    "work and sleep": ("chop tree", "sleep", "place crafting table"),
    "gardening": ("chop grass", "chop tree", "place plant"),
    "wilderness survival": ("sleep", "chop grass", "attack zombie"),
}
ONLY_BY_SUBGOALS = ("work and sleep", "gardening", "wilderness survival")


@dataclass(frozen=True)
class CuriositySettings(Part):
    title = "curiosity"

    curiosity: str | None = setting(
        "intrinsic reward: RND, NovelD, APT, E3B, or module:Class, one of your own; null: the "
        "task's alone",
        default=None,
    )


@dataclass(frozen=True)
class IntrinsicSettings(SentenceSettings):
    title = "curiosity"

    curiosity_weight: float = setting(
        "weight of the intrinsic reward", low=0, high=1e6, default=0.01
    )
    task_reward_weight: float = setting(
        "weight of the task's reward beside the intrinsic one", low=0, high=1e6, default=1.0
    )
    curiosity_features: str = setting(
        "input of the novelty measure: features of the agent's encoder, the observation itself, or "
        "the frozen memory of the HELM family",
        choices=("agent", "observation", "memory"),
        default="agent",
    )
    curiosity_text_weight: float = setting(
        "weight of texts beside the other observations", low=0, high=1e6, default=0.5
    )
    curiosity_width: int = setting(
        "width of the intrinsic networks", low=1, high=16_384, default=512
    )
    curiosity_learning_rate: float = setting(
        "learning rate of the intrinsic networks", low=0, high=10, default=1e-4
    )
    curiosity_batches: int | None = setting(
        "gradient steps of the intrinsic networks on each batch, which is cut into so many; null: "
        "n_batches with PPO, 1 with DQN, SAC and TD3",
        low=1,
        high=2**24,
        default=None,
    )


@dataclass(frozen=True)
class NovelDSettings(IntrinsicSettings):
    noveld_alpha: float = setting(
        "share of the novelty before a step that is taken off that after it",
        low=0,
        high=1e6,
        default=1.0,
    )
    noveld_first_visit: bool = setting(
        "pay a step to an observation only the first time in an episode, as in the paper; ELLM's "
        "code pays every time",
        default=False,
    )


@dataclass(frozen=True)
class AptSettings(IntrinsicSettings):
    apt_neighbours: int = setting(
        "nearest neighbours whose distance is the novelty, the step itself among them",
        low=1,
        high=1_000_000,
        default=12,
    )
    curiosity_icm: str = setting(
        "encoder of APT's distances: ellm, as in ELLM's code (an action is one number, the images' "
        "encoder reads text, too), or paper, as in Pathak et al. 2017",
        choices=("ellm", "paper"),
        default="ellm",
    )
    apt_clip: float = setting(
        "distance, in mean distances, that is subtracted and counts as 0",
        low=0,
        high=1e6,
        default=1e-4,
    )
    apt_group: int = setting(
        "steps in which neighbours are searched; a larger batch is split at random",
        low=1,
        high=1_000_000,
        default=1024,
    )


@dataclass(frozen=True)
class E3BSettings(IntrinsicSettings):
    e3b_ridge: float = setting(
        "weight of the identity that the covariance of an episode's codes begins with",
        low=1e-6,
        high=1e6,
        default=0.1,
    )


@dataclass(frozen=True)
class GoalSettings(Part):
    title = "goals"

    suggester: str | None = setting(
        "source of suggested goals, the reward in place of the environment's; null: none",
        choices=("silent", "oracle", "novelty", "language-model", "server", "yes-no"),
        default=None,
    )
    single_task: str | None = setting(
        "one task of Crafter, the reward in place of suggested goals",
        choices=tuple(TASKS),
        default=None,
    )
    single_task_goals: str = setting(
        "shown and paid part of a single task: the task alone, its subgoals, or these shown and "
        "the last one paid",
        choices=KINDS,
        default=TASK,
        needs="single_task",
    )
    goal_conditioned: bool = setting("show the agent its goals, as a sentence", default=False)
    goal_threshold: float = setting(
        "similarity of an action and a goal above which it is reached",
        low=0,
        high=0.9999,
        default=0.99,
        needs="suggester",
    )
    goal_encoder: str = setting(
        "frozen BERT that compares actions with goals: all-MiniLM-L6-v2, hub name, folder; "
        f"{SAME_TEXT}: letter by letter",
        default=DEFAULT_ENCODER,
        safe=(DEFAULT_ENCODER, SAME_TEXT),
        needs="suggester",
    )
    novelty_filter: bool = setting(
        "a goal is suggested and paid once an episode", default=True, needs="suggester"
    )
    require_success: bool | str | None = setting(
        f"an action must succeed to reach a goal; {EFFECT}: it must really change the world, too; "
        "null: true, except with suggester=novelty",
        choices=(EFFECT,),
        default=None,
        needs="suggester",
    )


@dataclass(frozen=True)
class WritingSettings(Part):
    title = "language models that suggest"

    suggester_model: str = setting(
        f"language model of the suggester: {DEFAULT_MODEL}, hub name, folder or GGUF file; of a "
        "server, the model's name there",
        default=DEFAULT_MODEL,
        safe=(DEFAULT_MODEL,),
    )
    suggester_max_tokens: int = setting(
        "largest number of tokens of a written answer", low=1, high=10_000, default=200
    )
    suggester_temperature: float = setting(
        "temperature of writing; 0: always the likeliest", low=0, high=2, default=0.1
    )
    retry_malformed: bool = setting(
        "as the original does, reject an answer with another line than bullets, and ask again at "
        "once",
        default=False,
    )
    suggester_wait: str = setting(
        "in a new scene wait for-answers, as the original does, or play on meanwhile with no-goals "
        "or the last-goals",
        choices=(FOR_ANSWERS, NO_GOALS, LAST_GOALS),
        default=FOR_ANSWERS,
    )
    suggester_cache: str | None = setting(
        "SQLite file of answers that runs share; null: one in the user's cache folder",
        has_effect=False,
        default=None,
        safe=(None,),
    )


@dataclass(frozen=True)
class LanguageModelSuggesterSettings(WritingSettings):
    suggest_by: str = setting(
        "scoring actions on things in view or held, or writing freely",
        choices=(SCORING, WRITING),
        default=SCORING,
    )
    n_suggestions: int = setting(
        "by scoring: largest number of suggested actions", low=1, high=1000, default=5
    )
    suggestion_threshold: float = setting(
        "by scoring: least score of a suggested action", low=-1000, high=1000, default=-1000.0
    )


@dataclass(frozen=True)
class ServerSettings(WritingSettings):
    title = "server that suggests"

    suggester_url: str | None = setting(
        "address of an OpenAI-compatible server, such as http://localhost:8000/v1",
        default=None,
        safe=(None,),
    )
    suggester_api: str = setting(
        "endpoint: chat, or completions of the unchanged prompt",
        choices=(CHAT, COMPLETIONS),
        default=CHAT,
    )
    suggester_key_variable: str = setting(
        "environment variable with the server's key, which itself is written nowhere",
        default=KEY_VARIABLE,
        safe=(KEY_VARIABLE,),
        typed=True,
    )
    suggester_budget: int | None = setting(
        "requests that a run may send, retries among them; 0: the cache alone; null: no limit",
        low=0,
        high=10**9,
        default=10_000,
    )
    suggester_timeout: float = setting(
        "timeout of a request in seconds", low=0.1, high=3600, default=60.0
    )
    suggester_retries: int = setting(
        "further tries after one that failed, with a wait that doubles", low=0, high=20, default=4
    )
    suggester_failure: str = setting(
        "without an answer: end-run, or go on with no-suggestions",
        choices=(END_RUN, NO_SUGGESTIONS),
        default=END_RUN,
    )


@dataclass(frozen=True)
class YesNoSettings(ServerSettings):
    title = "goals"

    yes_threshold: float = setting(
        "probability of yes, against no, above which a thing belongs somewhere",
        low=0.0,
        high=1.0,
        default=0.5,
    )


# What each intrinsic reward reads; its class says so, too, for those that derive from it.
CURIOSITY_READS = {
    "RND": (IntrinsicSettings,),
    "NovelD": (NovelDSettings,),
    "APT": (AptSettings,),
    "E3B": (E3BSettings,),
}
SUGGESTER_READS = {
    "language-model": (LanguageModelSuggesterSettings,),
    "server": (ServerSettings,),
    "yes-no": (YesNoSettings,),
}
GOAL_DEFAULTS = {field.name: field.metadata["default"] for field in fields(GoalSettings)}
ASKING = ("language-model", "server", "yes-no")  # suggesters that ask a language model
# Settings that an evaluation may change: the agent stays as it is.
OF_EVALUATION = set(GOAL_DEFAULTS) - {"goal_conditioned"}
# Settings without effect unless another one is given.
NEEDS = {
    field.name: field.metadata["needs"] for field in fields(GoalSettings) if field.metadata["needs"]
}


def goal_contradictions(config: GoalSettings) -> list[str]:
    task = config.single_task
    lines = []
    if config.suggester is not None and task is not None:
        lines.append(
            f"single_task: '{task}' excludes other goals, and suggester={config.suggester} gives "
            "some. Give one of them"
        )
    if task in ONLY_BY_SUBGOALS and config.single_task_goals == TASK:
        lines.append(
            f"single_task: '{task}' is paid by its subgoals alone. Add single_task_goals=subgoals, "
            f"or {REWARD_LAST}"
        )
    if config.goal_conditioned and config.suggester is None and task is None:
        lines.append("goal_conditioned: there are no goals. Add suggester=oracle or a single_task")
    return lines


def as_played(config: Config, given: Collection[str]) -> Config:
    """Return the settings of a run that is played, perhaps for other goals than its own.

    A given task replaces the run's suggester, and a given suggester its task; settings without
    effect then have their defaults. A language model is asked only where its suggester is given.

    Args:
        config: Of the run, with the given settings.
        given: The names of these.

    Raises:
        UserError: a line for every pair of settings that cannot both hold.
    """
    values = {name: vars(config)[name] for name in GOAL_DEFAULTS}
    for name, rival in (("single_task", "suggester"), ("suggester", "single_task")):
        if name in given and rival not in given and values[name] is not None:
            values[rival] = None
    asked = values["suggester"]
    if "suggester" not in given and asked in ASKING:
        log.info(
            f"no goals are suggested: suggester={asked} asks a language model, and playing asks "
            f"one only with --var suggester={asked}"
        )
        # An agent that reads goals needs the sentence in its observations, though it names none.
        values["suggester"] = "silent" if values["goal_conditioned"] else None
    for name, needed in NEEDS.items():
        if values[needed] is None and name not in given:
            values[name] = GOAL_DEFAULTS[name]
    config = config.replace(**values)
    raise_any([*needless(config, GOAL_DEFAULTS), *goal_contradictions(config.part(GoalSettings))])
    return config
