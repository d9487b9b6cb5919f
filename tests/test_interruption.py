import os
import signal

import pytest

from trainers.checkpoint import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_is_noted_and_answered_and_nothing_else_happens(number, capfd):
    with Interruption() as interruption:
        assert interruption.stop is None
        os.kill(os.getpid(), number)
        assert not interruption.save
        assert interruption.stop == number
    answer = "stopping after this update; once more to stop now, the last checkpoint stays"
    assert capfd.readouterr().err.strip() == answer


def test_a_signal_to_save_does_not_stop():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interruption.save
        assert interruption.stop is None


def test_the_first_signal_decides_the_exit_status():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.stop == signal.SIGINT


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


def test_afterwards_signals_do_what_they_did_before():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
