"""The settings of the environments."""

# Apart from the code that reads them: a program shows its help and refuses a wrong setting without
# waiting for PyTorch.

from dataclasses import dataclass
from typing import Any

from utils.settings import Config, Part, setting
from utils.user_modules import GIVEN

TITLE = "any other environment of Gymnasium"
LEARNED = "learned"
POPGYM = "popgym-"  # begins the names of its environments
MOST_THINGS = 20
PER_EPISODE, PER_ENVIRONMENT = "episode", "environment"
FULL = "full"
TRAINING_WORLDS, EVALUATION_WORLDS = "training", "evaluation"  # of Avalon


@dataclass(frozen=True)
class RecognitionSettings(Config):
    title = "ContinuousRecognition-v0"

    recognition_stimuli: str | None = setting(
        "folder of pictures to recognise; null draws them", safe=(None,), default=None
    )


@dataclass(frozen=True)
class CrafterSettings(Config):
    title = "Crafter"

    crafter_length: int | None = setting(
        "steps after which an episode is cut off; null: 10000 in Crafter-v1, 400 in CrafterText-v0",
        low=1,
        high=1_000_000,
        default=None,
    )


@dataclass(frozen=True)
class CrafterTextSettings(CrafterSettings):
    title = "CrafterText"

    crafter_actions: str = setting(
        "its actions: all 139 phrases, or the 27 good ones", choices=("all", "good"), default="all"
    )
    crafter_image: str = setting(
        "its pictures: gray, 84 x 84 as the original makes them, or in colour, 64 x 64",
        choices=("gray", "colour"),
        default="gray",
    )
    crafter_captions: str = setting(
        "source of its sentences: the state of the world, or a reading of its pictures",
        choices=("world", LEARNED),
        default="world",
    )
    use_text: bool = setting("show scene, inventory and status as text, too", default=True)
    terminate_on_death: bool = setting("end the episode where no health is left", default=True)


@dataclass(frozen=True)
class SimulatorSettings(Config):
    title = "Housekeep"

    housekeep_folder: str = setting(
        "folder of Housekeep's repository, with its data", default="housekeep", safe=()
    )
    housekeep_scene: str = setting("scene of iGibson", default="rs_int", safe=("rs_int",))
    housekeep_split: str = setting(
        "split of its data that has the scene", default="train", safe=("train",)
    )
    housekeep_episode: int = setting(
        "number of the scene's episode that is played", low=0, high=10_000, default=0
    )


@dataclass(frozen=True)
class AvalonSettings(Config):
    title = "Avalon"

    avalon_worlds: str = setting(
        "training: generated worlds, with the limits and costs of training; evaluation: generated "
        "ones with those of evaluation; or a folder of published evaluation worlds",
        default=TRAINING_WORLDS,
        safe=(TRAINING_WORLDS, EVALUATION_WORLDS),
    )
    avalon_difficulty: float = setting(
        "most difficult generated world: each draws its difficulty from 0 up to this",
        low=0,
        high=1,
        default=1.0,
    )
    avalon_depth: bool = setting("show the depth of the image, too", default=False)


@dataclass(frozen=True)
class HouseSettings(Config):
    title = "HousekeepText"

    house_rooms: int = setting(
        "rooms: the first of kitchen, bedroom, bathroom, living room, study, hallway",
        low=1,
        high=6,
        default=4,
    )
    house_things: int = setting("things that lie about", low=1, high=MOST_THINGS, default=8)
    house_misplaced: int = setting(
        "how many of them lie where they do not belong", low=1, high=MOST_THINGS, default=4
    )
    house_steps: int = setting("steps of the longest episode", low=1, high=100_000, default=200)
    use_text: bool = setting("show scene, inventory and status as text, too", default=True)


@dataclass(frozen=True)
class TwinSettings(Config):
    title = "environments with a twin"

    observability: str = setting(
        "full: the environment's twin, which shows at every step what is to be remembered",
        choices=("partial", FULL),
        default="partial",
    )


@dataclass(frozen=True)
class ResetSettings(TwinSettings):
    title = "environments of Gymnasium, and given ones"

    reset_options: dict[str, Any] = setting(  # noqa: RUF009  nobody changes it
        "options that each reset of an environment is given", default={}, safe=()
    )


@dataclass(frozen=True)
class GymnasiumSettings(ResetSettings):
    title = TITLE

    env_args: dict[str, Any] = setting(  # noqa: RUF009  nobody changes it
        "arguments for the environment's constructor", default={}, safe=()
    )
    env_processes: bool = setting(
        "a process for each environment: pays where steps are slow; the numbers stay the same",
        has_effect=False,
        default=False,
    )
    atari_preprocessing: bool = setting(
        "Gymnasium's AtariPreprocessing, for environments of ale_py: grey images of 84x84, four "
        "frames an action, up to 30 no-ops at the beginning",
        default=False,
    )


@dataclass(frozen=True)
class MissionSettings(TwinSettings):
    title = "MiniGrid and BabyAI"

    minigrid_missions: bool | None = setting(
        "show the sentence that names the task; null: on BabyAI only", default=None
    )


@dataclass(frozen=True)
class PopgymSettings(TwinSettings):
    title = "POPGym"

    popgym_previous_action: bool = setting(
        "the observation has the last action, at the first step action 0 (PreviousAction)",
        default=True,
        older=False,
    )
    popgym_antialias: bool = setting(
        "the observation has a flag that is 1 at the first step of an episode (Antialias)",
        default=True,
        older=False,
    )


@dataclass(frozen=True)
class LengthSettings(TwinSettings):
    """The setting of all tasks of Ni et al.: T-Maze, Visual Match and Key-to-Door.

    T-Maze and Visual Match ask how far an agent can remember, Key-to-Door how far it can assign
    credit. All episodes last equally long, and the last step is a true end, no time limit.
    """

    title = "memory tasks"

    length: int = setting(
        "steps of the corridor, or of the phase with apples, that an agent has to bridge",
        low=1,
        high=100_000,
        default=10,
    )


@dataclass(frozen=True)
class VisualMatchSettings(LengthSettings):
    title = "VisualMatch-v0"

    door_order: str = setting(
        "when the colours of the doors are drawn: in every episode, or once per environment, as in "
        "the original",
        choices=(PER_EPISODE, PER_ENVIRONMENT),
        default=PER_EPISODE,
    )


# What each suite reads, by its name in envs.SUITES; the others read nothing of their own.
OWN_GRIDS = "your own MiniGrid tasks"
READS: dict[str, tuple[type[Part], ...]] = {
    "MiniGrid-": (MissionSettings,),
    "BabyAI-": (MissionSettings,),
    "TMazePassive-v0": (LengthSettings,),
    "TMazeActive-v0": (LengthSettings,),
    "VisualMatch-v0": (VisualMatchSettings,),
    "KeyToDoor-v0": (LengthSettings,),
    "Housekeep-v0": (SimulatorSettings,),
    "Avalon-": (AvalonSettings,),
    "HousekeepText-v0": (HouseSettings,),
    "ContinuousRecognition-v0": (RecognitionSettings,),
    "Crafter-v1": (CrafterSettings,),
    "CrafterText-v0": (CrafterTextSettings,),
    POPGYM: (PopgymSettings,),
    GIVEN: (ResetSettings,),
    TITLE: (GymnasiumSettings,),
    OWN_GRIDS: (GymnasiumSettings, MissionSettings),
}
