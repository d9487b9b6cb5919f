"""Pictures and tables of runs: what plot.py draws, and the style every picture shares."""
