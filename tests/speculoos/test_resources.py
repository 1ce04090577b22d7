"""Minimum disk space and memory, the disk reserve, what the pages show of it, and logs."""

import contextlib
import html
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from app.views import status_bar
from cli.launch.programs import Program
from cli.launch.supervision import ProcessSupervisor, end_leftover_processes
from ops import health
from speculoos import logs, resources
from speculoos.errors import BadInput
from speculoos.private import private_folder
from speculoos.settings import Settings, load
from tests.tools.running import wait_for
from tracking import db

MB = 2**20


def fill(disk: Path, left: int = 0) -> Path:
    """Fill a disk with one file until `left` bytes are free."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MB, 4096):
            while shutil.disk_usage(disk).free >= left + size:
                file.write(b"0" * size)
    return ballast


@pytest.fixture
def small_home(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("SPECULOOS_HOME", str(small_disk / "home"))
    settings = load()
    private_folder(settings.run_dir)
    yield settings
    end_leftover_processes(settings, timeout=0)
    shutil.rmtree(settings.run_dir, ignore_errors=True)


LOGS_WITHOUT_END = """
import logging, time
from speculoos.logs import configure_logging
from speculoos.settings import load
configure_logging(load(), "chatty")
for number in range(10**9):
    logging.getLogger("chatty").info("line %s %s", number, "x" * 4000)
    time.sleep(0.002)
"""


def write_calls(pid: int) -> int:
    """Write calls of a process so far, failed ones included."""
    return int(re.search(r"syscw: (\d+)", Path(f"/proc/{pid}/io").read_text())[1])


@pytest.mark.integration
def test_a_full_disk_ends_no_program(small_home: Settings, small_disk: Path) -> None:
    """Lines that cannot be written are lost; with free space the log goes on."""
    supervisor = ProcessSupervisor(small_home, [Program("chatty", (sys.executable, "-c", LOGS_WITHOUT_END), 1, 1)])
    supervisor.start()
    process, log = supervisor.running["chatty"].process, small_home.home / "logs" / "chatty.log"
    wait_for(lambda: log.exists() and "line 3 " in log.read_text(), "the first lines")
    ballast = fill(small_disk)
    wait_for(lambda: shutil.disk_usage(small_disk).free == 0, "a full disk")
    size, calls = log.stat().st_size, write_calls(process.pid)
    wait_for(lambda: write_calls(process.pid) > calls + 100, "lines that cannot be written")
    assert process.poll() is None and log.stat().st_size <= size + 8192
    ballast.unlink()
    wait_for(lambda: log.stat().st_size > size + 20_000, "lines after the disk has free space again")
    supervisor.poll()
    assert supervisor.running["chatty"].process is process
    supervisor.stop()


@pytest.mark.integration
def test_the_reserve_is_given_up_for_rows_and_made_again(small_home: Settings, small_disk: Path) -> None:
    db.upgrade(small_home)
    assert resources.update_reserve(small_home)
    reserve = small_home.home / resources.RESERVE
    assert MB < reserve.stat().st_size < 2 * MB
    ballast = fill(small_disk)
    assert resources.is_disk_full(small_home.home)

    def write() -> None:
        with db.writing(small_home) as session:
            session.merge(db_row("x" * 400_000))

    from speculoos.errors import Unavailable
    from tracking.tables import Preference

    def db_row(text: str) -> Preference:
        return Preference(key="large", value={"text": text})

    with pytest.raises(Unavailable, match="is full; free some space"):
        write()
    assert not reserve.exists()
    write()
    assert not resources.update_reserve(small_home), "there is no room for it yet"
    ballast.unlink()
    assert resources.update_reserve(small_home) and reserve.exists()


@pytest.mark.integration
def test_floors_fit_the_disk_and_a_pause_ends_above_them(small_disk: Path) -> None:
    settings = load({"SPECULOOS_HOME": str(small_disk)})
    fill(small_disk, MB)
    assert resources.disk_shortage(settings) is None, "on 16 MB the floor is a 50th, not a gigabyte"
    strict = replace(settings, min_disk_mb=4)
    monitor = resources.ResourceMonitor(strict)
    short = monitor.shortage()
    assert short.kind == "disk" and not short.uses_attempt
    assert short.note == (
        f"Paused: 1.0 MB free on the disk that holds {small_disk}, the minimum is 4.2 MB; "
        "free some space and the job continues automatically"
    )
    for left, goes_on in ((4.5, False), (5.5, True), (4.5, True)):
        (small_disk / "ballast").unlink()
        fill(small_disk, int(left * MB))
        assert (monitor.shortage() is None) == goes_on, left
    assert resources.disk_shortage(replace(settings, min_disk_mb=0)) is None


def test_memory_must_be_short_for_some_seconds_before_it_counts(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = replace(home, min_memory_mb=10**9)
    monitor = resources.ResourceMonitor(greedy)
    assert monitor.shortage() is None
    monitor._short_since -= resources.MEMORY_SECONDS
    short = monitor.shortage()
    assert short.kind == "memory" and short.uses_attempt and "of memory available, the minimum is" in short.note
    assert resources.memory_shortage(replace(home, min_memory_mb=0)) is None


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"max": "1073741824", "current": "900000000", "stat": "anon 5\ninactive_file 100000000"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert resources.available_memory() == (1073741824 - 800000000, 1073741824)
    (tmp_path / "memory.max").write_text("max")
    assert resources.available_memory()[1] > 1073741824


@pytest.mark.integration
def test_every_page_says_what_is_full_and_where_to_free_space(small_home: Settings, small_disk: Path) -> None:
    db.upgrade(small_home)

    def visible_text() -> str:
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", status_bar.render(small_home))).split())

    assert "is full" not in visible_text()
    (small_home.home / "models").mkdir()
    shutil.move(fill(small_disk), small_home.home / "models" / "large")
    text = visible_text()
    assert f"The disk that holds {small_home.home} is full; nothing can be stored." in text
    assert text.endswith("Free up space")
    assert 'href="/settings/storage"' in status_bar.render(small_home)
    assert "Paused: 0.0 MB free" in health.check(small_home, ["disk"])["disk"].detail


@pytest.mark.parametrize(
    ("name", "value"),
    [("SPECULOOS_MIN_DISK_MB", "-1"), ("SPECULOOS_MIN_MEMORY_MB", "much"), ("SPECULOOS_LOG_FORMAT", "xml")],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{name}: expected"):
        load({name: value})


@pytest.fixture
def log_settings(home: Settings) -> Iterator[tuple[Settings, StringIO]]:
    """Settings with a secret, and a stream for log lines; logging is restored afterwards."""
    root, raising = logging.getLogger(), logging.raiseExceptions
    before, level = root.handlers[:], root.level
    yield replace(home, hf_token="hf_" + "Sesame" * 6), StringIO()
    root.handlers[:], logging.raiseExceptions = before, raising
    root.setLevel(level)


def test_a_line_has_time_level_process_and_what_it_is_about(log_settings: tuple[Settings, StringIO]) -> None:
    settings, out = log_settings
    logs.configure_logging(settings, "web", out)
    with logs.with_log_context(job="j1", attempt=2), logs.with_log_context(run="r1"):
        logging.getLogger("app.x").warning("the token is %s", settings.hf_token)
    logging.getLogger("app.x").info("later")
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"[\d-]+ [\d:,]+ WARNING web app\.x \[job=j1 attempt=2 run=r1\] the token is •••", first)
    assert re.fullmatch(r"[\d-]+ [\d:,]+ INFO web app\.x later", second)
    assert [logs.message_of(line) for line in (first, second, "a library's")] == [
        "the token is •••",
        "later",
        "a library's",
    ]


def test_the_same_as_json_with_a_traceback_without_secrets(log_settings: tuple[Settings, StringIO]) -> None:
    settings, out = log_settings
    logs.configure_logging(replace(settings, log_format="json"), "inference", out, job="j1")
    try:
        raise ValueError(settings.hf_token)
    except ValueError:
        logging.getLogger("serving").exception("it broke:\nhere")
    (line,) = out.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["process"], record["logger"], record["job"]) == (
        "error",
        "inference",
        "serving",
        "j1",
    )
    assert record["message"] == "it broke:\nhere" and "ValueError: •••" in record["exception"]
    assert settings.hf_token not in line and logs.message_of(line) == "it broke:\nhere"


def test_a_line_that_cannot_be_written_ends_nothing(log_settings: tuple[Settings, StringIO]) -> None:
    settings, _ = log_settings
    with open("/dev/full", "w", buffering=1) as full:
        logs.configure_logging(settings, "web", full)
        logging.getLogger("app").warning("nobody hears this")
        with contextlib.suppress(OSError):
            full.close()
