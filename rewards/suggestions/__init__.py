"""Who suggests what to want next: one file each."""
