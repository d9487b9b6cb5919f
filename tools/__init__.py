"""Long checks of whole runs, typed by hand: kills, sweeps, memory, hostile inputs."""
