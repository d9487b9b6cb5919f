"""A disk that is full, as far as this process and those it starts can see."""

import contextlib
import resource


@contextlib.contextmanager
def largest_file(n_bytes):
    """Let no file grow beyond so many bytes, for programs started from here as well."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
