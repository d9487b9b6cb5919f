"""Count the words of saved SHELM episodes: python -m benchmarks.retrieved_words FOLDER."""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np


def count_words(folder: Path) -> Counter[str]:
    """Return how often each word was retrieved, over all steps of all episodes in a folder."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            counts.update(arrays["words"].flatten().tolist())
    return counts


def main(argv: list[str] | None = None) -> int:
    """Print the most frequent words with their shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where eval.py saved the episodes")
    parser.add_argument("--most", type=int, default=20, help="how many words to print")
    arguments = parser.parse_args(argv)
    counts = count_words(arguments.folder)
    for word, count in counts.most_common(arguments.most):
        print(f"{word:20} {count:8,d}  {count / counts.total():6.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
