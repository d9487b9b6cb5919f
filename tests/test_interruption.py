import os
import signal

import pytest

from trainers.checkpoint import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_one_to_stop_is_answered(number, capfd):
    before = signal.getsignal(number)
    stops = number != signal.SIGUSR1
    with Interruption() as interruption:
        assert interruption.stop is None
        os.kill(os.getpid(), number)
        assert interruption.save == (not stops)
        assert interruption.stop == (number if stops else None)
        if number == signal.SIGINT:  # a SIGTERM that follows is one that torchrun passes on
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.stop == signal.SIGINT
    answer = "stopping where it can be saved; once more to stop now, the last checkpoint stays"
    assert capfd.readouterr().err.strip() == (answer if stops else "")
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGTERM, 0),  # a Ctrl-C that torchrun passes on
    ],
)
def test_a_second_signal_leaves_at_once(first, second, status):
    child = os.fork()
    if not child:
        with Interruption():
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
