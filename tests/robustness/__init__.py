"""Long checks of whole runs, started by hand: kills and full disks."""
