import numpy as np

from benchmarks import retrieved_words


def test_words_are_counted_over_all_steps_of_all_episodes(tmp_path, capsys):
    np.savez(tmp_path / "1.npz", words=np.array([["door", "key"], ["door", "ball"]]))
    np.savez(tmp_path / "2.npz", words=np.array([["door", "key"]]))
    assert retrieved_words.main([str(tmp_path), "--most", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["door", "3", "50.0%"], ["key", "2", "33.3%"]]
