"""A small stand-in for Avalon's engine: a program that speaks its protocol, and no more.

`install` puts it where the package looks for the engine. Its player eats if the right hand grasps
at frame EATS, and then the food is gone; it falls to its death if it jumps at frame FALLS. The
image's lowest left pixel holds the frame, the episode's seed and the world's checksum; its depth
is 200. A head moves by what an action asks for. It knows nothing of space, of sight or of bodies.
"""

import importlib
import sys
from pathlib import Path

EATS, FALLS, FRAMES_AFTER_FOOD = 3, 5, 20
DEPTH = 200
INT, REAL, VECTOR, IMAGE = 2, 3, 7, -1  # types as the engine numbers them
PARTS = ("head", "left_hand", "right_hand")
FEATURES = {
    name: (INT, [1])
    for name in ("episode_id", "frame_id", "is_done", "is_dead", "is_food_present_in_world")
}
FEATURES |= {"nearest_food_id": (INT, [1]), "nearest_food_position": (VECTOR, [3])}
FEATURES |= {f"{side}_hand_held_thing": (INT, [1]) for side in ("left", "right")}
FEATURES |= {f"{side}_hand_thing_colliding_with_hand": (INT, [1]) for side in ("left", "right")}
FEATURES |= {
    name: (REAL, [1])
    for name in (
        "reward",
        "hit_points",
        "hit_points_lost_from_enemies",
        "hit_points_gained_from_eating",
        "fall_damage",
        "physical_body_kinetic_energy_expenditure",
        *(f"physical_{part}_potential_energy_expenditure" for part in ("body", *PARTS)),
        *(f"physical_{part}_kinetic_energy_expenditure" for part in PARTS[1:]),
    )
}
FEATURES |= {
    f"{kind}_{part}_{what}": (VECTOR, [3])
    for what in ("position", "rotation")
    for part in PARTS
    for kind in ("target", "physical")
}
FEATURES |= {f"physical_body_{what}": (VECTOR, [3]) for what in ("position", "rotation")}
FEATURES |= {
    f"physical_{part}_{how}_{what}": (VECTOR, [3])
    for part in ("body", *PARTS)
    for how in ("delta", "relative")
    for what in ("position", "rotation")
}

# The engine's own program: it is begun without any environment, so it imports nothing of ours.
PROGRAM = """
import json, struct, sys, zlib

given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
side = int(sys.argv[sys.argv.index("--resolution") + 1].split("x")[0])
with open(given["--config-file"]) as file:
    frames_after_food = json.load(file)["player"]["num_frames_alive_after_food_is_gone"]
print("Establishing Bridge", flush=True)
actions = open(given["--input-pipe-path"], "rb")
observations = open(given["--output-pipe-path"], "wb")
print("GODATA!", flush=True)


def read(pattern):
    return struct.unpack(pattern, actions.read(struct.calcsize(pattern)))


def read_action():
    return struct.unpack("<21f", actions.read(read("<i")[0]))


def tell(state):
    values = dict(state)
    corner = bytes((state["frame_id"] % 256, state["episode_id"] % 256, state["world"], DEPTH))
    rows = bytearray(bytes((0, 0, 0, DEPTH)) * side * side)
    rows[-4 * side : 4 - 4 * side or None] = corner
    for name in selected:
        kind, shape = FEATURES[name]
        if kind == IMAGE:
            observations.write(rows)
            continue
        value = values.get(name, 0)
        numbers = value if isinstance(value, tuple) else [value] * shape[0]
        observations.write(struct.pack("<%d%s" % (shape[0], "i" if kind == INT else "f"), *numbers))
    observations.flush()


FEATURES["rgbd"] = (IMAGE, [side, side, 4])
selected, state = [], {}
while True:
    (message,) = actions.read(1)
    if message == 5:  # which features there are
        observations.write(struct.pack("<i", len(FEATURES)))
        for name, (kind, shape) in FEATURES.items():
            observations.write(struct.pack("<i", len(name)) + name.encode())
            observations.write(struct.pack("<ii", kind, len(shape)))
            observations.write(struct.pack("<%di" % len(shape), *shape))
        observations.flush()
    elif message == 4:  # the ones to be told
        (n_selected,) = read("<I")
        selected = [actions.readline().decode().strip() for _ in range(n_selected)]
    elif message == 1:  # a seed
        read("<q")
    elif message == 0:  # an episode
        read_action()
        (seed,) = read("<q")
        with open(actions.readline().decode().strip()) as file:
            scene = file.read().replace(file.name.rpartition("/")[0], "")
        (health,) = read("<f")
        state = {"episode_id": seed % 2**31, "frame_id": 0, "hit_points": health}
        state |= {"is_food_present_in_world": 1, "gone_since": None}
        state["world"] = zlib.crc32(scene.encode()) % 256
        tell(state)
    elif message == 3:  # an action
        action = read_action()
        state["frame_id"] += 1
        frame = state["frame_id"]
        eats = frame == EATS and action[19] > 0 and state["is_food_present_in_world"]
        falls = frame == FALLS and action[20] > 0
        gained, damage = 0.5 * eats, float(falls)
        if eats:
            state |= {"is_food_present_in_world": 0, "gone_since": frame - 1}
        reward = max(gained - damage, -state["hit_points"])
        state |= {"reward": reward, "hit_points": state["hit_points"] + reward}
        state |= {"hit_points_gained_from_eating": gained, "fall_damage": damage}
        state |= {"physical_head_delta_position": action[:3], "left_hand_held_thing": -1}
        state["right_hand_held_thing"] = 17 if action[19] > 0 else -1
        state["is_dead"] = int(state["hit_points"] <= 0)
        fed = state["gone_since"] is not None and frame - state["gone_since"] >= frames_after_food
        state["is_done"] = int(fed or state["is_dead"])
        tell(state)
    elif message == 6:  # the end
        sys.exit()
    else:
        print("ERROR: unexpected message", message, flush=True)
        sys.exit(1)
"""


def install(monkeypatch, folder: Path, without: str = "") -> Path:
    """Write the engine into a folder and let the package find it; `without` is a feature's name."""
    features = {name: each for name, each in FEATURES.items() if name != without}
    names = ("EATS", "FALLS", "DEPTH", "INT", "IMAGE")
    constants = [f"{name} = {globals()[name]}" for name in names]
    path = folder / "godot"
    lines = [f"#!{sys.executable} -I", *constants, f"FEATURES = {features!r}", PROGRAM]
    path.write_text("\n".join(lines))
    path.chmod(0o755)
    # Of the package in this process, and in others that are begun from here.
    monkeypatch.setenv("GODOT_BINARY_PATH", str(path))
    module = "avalon.datagen.godot_env.interactive_godot_process"
    monkeypatch.setattr(importlib.import_module(module), "GODOT_BINARY_PATH", str(path))
    return path
