"""The folder of a run: what it holds, and the places where a run is watched."""
