"""Many runs at once: grids, searches, and the jobs that train them."""
