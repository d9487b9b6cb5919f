"""Several ranks on this machine, forked from the test as torchrun would start them."""

import multiprocessing
import os
import socket
import sys
import traceback

import torch

SECONDS = 300


def on_ranks(size, function, folder):
    """Run a function in every rank and return the results or exit statuses.

    Args:
        size: Number of ranks; 1 stands for a process without torchrun.
        function: Called with the rank; its result goes through a file.
        folder: Where the results and the ranks' stderr are kept.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork, given = multiprocessing.get_context("fork"), (size, port, function, folder)
    ranks = [fork.Process(target=_rank, args=(rank, *given)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
    for process in ranks:
        process.kill()  # one that waits in vain for another
    for process in ranks:
        process.join()
        assert process.exitcode == 0, errors(folder, ranks.index(process))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


def errors(folder, rank):
    """Return the stderr of a rank."""
    return (folder / f"{rank}.err").read_text()


def _rank(rank, size, port, function, folder):
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{rank}.{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    if size > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    status = 0
    try:
        torch.save(function(rank), folder / f"{rank}.pt")
    except SystemExit as error:
        torch.save(error.code, folder / f"{rank}.pt")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
