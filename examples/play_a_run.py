"""Load a run and play it step by step: act, look at the memory, draw.

python examples/play_a_run.py experiments/GPT/MiniGrid-MemoryS11-v0/seed=0
"""

import sys
from pathlib import Path

import imageio.v3 as imageio

import helm


def main(run: str, movie: str = "episode.gif") -> float:
    """Play an episode, print the memory's attention, write a movie; return the sum of rewards."""
    pictures, paid = [], 0.0
    with helm.load(run) as player:
        observation = player.reset(seed=0)
        while not player.ended:
            looked = player.inspect(observation)
            action = player.act(observation, greedy=True)
            pictures.append(player.draw())
            observation, reward, _, _, _ = player.step(action)
            paid += reward
            print(f"step {len(pictures)}: action {action}{noticed(looked)}")
    imageio.imwrite(Path(movie), pictures, duration=250)
    return paid


def noticed(looked: dict) -> str:
    """Return the step with the most attention, and the words of HELM's tokens."""
    text = ""
    if "attention" in looked:
        by_step = looked["attention"].mean((0, 1))  # [L, H, S] -> [S], the present step last
        text += f", looks back {len(by_step) - 1 - int(by_step.argmax())} steps"
    if "words" in looked:
        text += f", reads {' '.join(looked['words'])}"
    return text


if __name__ == "__main__":
    print("return", main(*sys.argv[1:]))
