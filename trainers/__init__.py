"""Training: the loop, the learners, and the files that a run keeps."""
