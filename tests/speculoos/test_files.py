"""Files appear complete or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from speculoos.files import new_path


def test_threads_that_write_one_file_do_not_share_the_temporary_one(tmp_path: Path) -> None:
    target, both = tmp_path / "file", Barrier(2, timeout=30)

    def write(text: str) -> str:
        with new_path(target) as temporary:
            temporary.write_text(text)
            both.wait()
            return temporary.read_text()

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(write, ("one", "another"))] == ["one", "another"]
    assert target.read_text() in ("one", "another") and [*tmp_path.iterdir()] == [target]
