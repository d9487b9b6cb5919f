"""Figures to be measured, each beside the straightforward version it is compared with."""
