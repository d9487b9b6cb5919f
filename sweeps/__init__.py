"""Many runs at once: the grid, the tasks that carry it out, and what is shown of them."""
