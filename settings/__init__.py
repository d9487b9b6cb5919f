"""Settings of a run: declared by part beside the code that reads them, read as one flat object."""

from settings.config import MOST_SEED, Config
from settings.declaration import Part, setting
from settings.help import describe_settings
from settings.loading import (
    NAMED_BY_ALL,
    SEVERAL,
    Given,
    chosen_agent,
    completed,
    config_from_dict,
    default_settings,
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
    recomposed,
    settings_without_effect,
)
from settings.registry import Program, Registry, install

__all__ = [
    "MOST_SEED",
    "NAMED_BY_ALL",
    "SEVERAL",
    "Config",
    "Given",
    "Part",
    "Program",
    "Registry",
    "all_settings",
    "chosen_agent",
    "completed",
    "composed_class",
    "config_from_dict",
    "default_settings",
    "describe_settings",
    "file_settings",
    "given_by_file",
    "install",
    "load_config",
    "outside_settings",
    "read_json_object",
    "read_settings",
    "recomposed",
    "setting",
    "settings_without_effect",
    "with_env_settings",
]
