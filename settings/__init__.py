"""Settings of a run: declared by part beside the code that reads them, read as one flat object."""

from settings.config import MOST_SEED, Config
from settings.declaration import Part, setting
from settings.help import describe_settings
from settings.loading import (
    DEFAULT_FILE,
    SEVERAL,
    Given,
    chosen_agent,
    completed,
    config_from_dict,
    file_settings,
    given_by_file,
    load_config,
    read_json_object,
    with_env_settings,
)
from settings.parts import (
    all_settings,
    composed_class,
    outside_settings,
    read_settings,
    settings_without_effect,
)

__all__ = [
    "DEFAULT_FILE",
    "MOST_SEED",
    "SEVERAL",
    "Config",
    "Given",
    "Part",
    "all_settings",
    "chosen_agent",
    "completed",
    "composed_class",
    "config_from_dict",
    "describe_settings",
    "file_settings",
    "given_by_file",
    "load_config",
    "outside_settings",
    "read_json_object",
    "read_settings",
    "setting",
    "settings_without_effect",
    "with_env_settings",
]
