"""Prepare SHELM's retrieval: embed the words that image encoder and language model share."""

import utils.starting  # noqa: F401

# isort: split
import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.minigrid_captions import CaptionBatches
from models import resolve_device
from models.clip import load_encoder
from models.encoders import ImageTextEncoder
from models.grid_clip import FILE, NAME, train_grid_clip
from models.language.files import find_model
from models.language.load import describe_language_model
from models.word_embeddings import PROMPTS, embeddings_file, prepare
from utils.command_line import Parser, run_program
from utils.files import DATA_FOLDER, check_writable, file_lock

SEED = 0  # of grid-clip's training captions and initial weights


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(run, argv)


def run(argv: Sequence[str] | None) -> None:
    arguments = parse_arguments(argv)
    check_writable(arguments.data_folder, "--data-folder")
    describe_language_model(arguments.language_model)
    language_model = find_model(arguments.language_model)
    language_model.vocabulary()  # a broken one is found before the encoder is trained
    encoder = find_encoder(arguments)
    for suite in PROMPTS if arguments.suite == "all" else [arguments.suite]:
        written = prepare(encoder, language_model, suite, arguments.data_folder)
        path = embeddings_file(encoder.name, language_model.name, suite, arguments.data_folder)
        print(f"{path} is written" if written else f"{path} is up to date, nothing to be done")


def find_encoder(arguments: argparse.Namespace) -> ImageTextEncoder:
    device, folder = resolve_device(arguments.device), arguments.data_folder
    if arguments.clip_encoder == NAME and not (folder / FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / FILE):
            if not (folder / FILE).is_file():  # another call may have trained it in the meantime
                train_grid_clip(CaptionBatches(SEED), SEED).save(folder)
    return load_encoder(arguments.clip_encoder, arguments.clip_pretrained, device, folder)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="prepare_embeddings.py",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    suites = [*PROMPTS, "all"]
    add("--suite", choices=suites, default="minigrid", help="the suite of the prompts to embed")
    add("--clip-encoder", metavar="NAME", default=NAME, help="grid-clip, or a model of open_clip")
    weights = "weights of open_clip's model: a published tag, or a local checkpoint file"
    add("--clip-pretrained", metavar="TAG_OR_FILE", default="openai", help=weights)
    model = "all-MiniLM-L6-v2"
    as_in = "as in the setting language_model"
    add("--language-model", metavar="NAME_OR_FOLDER", default=model, help=as_in)
    where = "folder of the files"
    add("--data-folder", metavar="FOLDER", type=Path, default=DATA_FOLDER, help=where)
    add("--device", default="auto", help="auto, cpu or cuda")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
