"""What a step costs the player: hunger, thirst, fatigue, and what they do to its health."""

from envs.crafter.compiled import compiled
from envs.crafter.world import DRINK, ENERGY, FOOD, HEALTH, MOST, World


@compiled
def live(world: World) -> None:
    """Let the player get hungry, thirsty and tired, recover or suffer, and wake when hurt."""
    _need(world)
    _recover(world)
    for item in range(len(world.inventory)):
        world.inventory[item] = max(0, min(world.inventory[item], MOST))
    if world.inventory[HEALTH] < world.last_health:
        world.sleeping = False
    world.last_health = world.inventory[HEALTH]


@compiled
def _need(world: World) -> None:
    """Let time pass for food, drink and energy."""
    pace = 0.5 if world.sleeping else 1.0
    world.hunger += pace
    if world.hunger > 25:
        world.hunger = 0.0
        world.inventory[FOOD] -= 1
    world.thirst += pace
    if world.thirst > 20:
        world.thirst = 0.0
        world.inventory[DRINK] -= 1
    world.fatigue = min(world.fatigue - 1, 0.0) if world.sleeping else world.fatigue + 1
    if world.fatigue < -10:
        world.fatigue = 0.0
        world.inventory[ENERGY] += 1
    if world.fatigue > 30:
        world.fatigue = 0.0
        world.inventory[ENERGY] -= 1


@compiled
def _recover(world: World) -> None:
    """Let the player get health while it lacks nothing, and lose it while it does."""
    items, sleeping = world.inventory, world.sleeping
    lacks_nothing = items[FOOD] > 0 and items[DRINK] > 0 and (items[ENERGY] > 0 or sleeping)
    if lacks_nothing:
        world.recovery += 2 if sleeping else 1
    else:
        world.recovery -= 0.5 if sleeping else 1.0
    if world.recovery > 25:
        world.recovery = 0.0
        items[HEALTH] = max(0, items[HEALTH] + 1)
    if world.recovery < -15:
        world.recovery = 0.0
        items[HEALTH] = max(0, items[HEALTH] - 1)
