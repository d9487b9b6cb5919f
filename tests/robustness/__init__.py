"""Long checks of whole runs, started by hand: kills, sweeps, memory."""
