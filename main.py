"""Train an agent: settings → environments, agent, trainer → run folder."""

import utils.starting  # noqa: F401

# isort: split
from collections.abc import Sequence

from report import configured_showcase
from runs.training_arguments import has_printed, training_arguments
from settings import load_config
from trainers.build import NewRun, begin, go_on
from trainers.ranks import joined_ranks
from trainers.run import RunSettings
from utils.command_line import leave, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says and return the exit status."""
    return run_program(train, argv)


def train(argv: Sequence[str] | None) -> None:
    """Begin the run that the settings describe, go on with an earlier one, or print."""
    arguments = training_arguments(argv, __doc__)
    if has_printed(arguments):
        return
    with joined_ranks() as ranks:
        if arguments.resume:
            go_on(arguments.resume, ranks, trust=arguments.trust, show=configured_showcase)
            return
        given = (arguments.config, arguments.overrides)
        config = load_config(*given).part(RunSettings)
        new = NewRun(
            arguments.run_id, arguments.overrides, arguments.init_from, trust=arguments.trust
        )
        begin(config, new, ranks, configured_showcase)


if __name__ == "__main__":
    leave(main())
