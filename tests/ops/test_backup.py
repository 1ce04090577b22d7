"""A backup contains everything that rows name, also while others write, and can be restored into either database."""

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from cli.launch.homelock import HomeLock
from cli.main import main
from ops import backup
from ops.backup import back_up, stream
from ops.migrate import migrate
from ops.restore import BUSY, restore
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.settings import Settings
from tests.ops.conftest import Filled, digest, rows_of, write
from tracking import db, jobs, processes, runs
from tracking.tables import Base, Checkpoint, Dataset, Experiment, Run


def backup_of(settings: Settings, **options: bool) -> io.BytesIO:
    out = io.BytesIO()
    stream(settings, out, **options)
    out.seek(0)
    return out


def names(packed: io.BytesIO) -> list[str]:
    with tarfile.open(fileobj=packed) as tar:
        return tar.getnames()


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_restored_home_equals_the_original(filled: Filled, other: Settings) -> None:
    """From SQLite and from PostgreSQL, into SQLite."""
    before = rows_of(filled.settings)
    report = restore(other, backup_of(filled.settings), "x.tar")
    after = rows_of(other)
    assert before.keys() == after.keys() and report.rows == sum(map(len, after.values()))
    for table in ("experiments", "evaluations", "metrics", "job_logs", "samples", "run_steps", "api_keys"):
        assert after[table] == before[table], table
    old, new, ids = filled.settings.home, other.home, filled.ids
    for table in ("bases", "datasets", "checkpoints"):
        moved = [{**row, "path": row["path"].replace(str(old), str(new))} for row in before[table]]
        assert after[table] == moved, table
    for path in ("models", f"datasets/{ids['data']}", "settings.toml", f"checkpoints/{ids['heads']}", "logs"):
        if (old / path).is_dir():
            assert contents(new / path) == contents(old / path), path
        else:
            assert (new / path).read_bytes() == (old / path).read_bytes()
    assert not (new / BUSY).exists()


def test_a_restore_into_postgresql_continues_its_sequences(
    filled_sqlite: Filled, database: Settings, tmp_path: Path
) -> None:
    """A home moves from SQLite to PostgreSQL by backup and restore."""
    if database.database_url.startswith("sqlite"):
        pytest.skip("the other test does this")
    packed = backup_of(filled_sqlite.settings)
    moved = replace(database, home=tmp_path / "moved")
    restore(moved, packed, "x.tar")
    assert rows_of(moved)["metrics"] == rows_of(filled_sqlite.settings)["metrics"]
    with db.writing(moved) as session:
        from tracking import reports

        reports.add_log(session, filled_sqlite.ids["done"], 1, "a line more gets a number of its own")
        assert len(reports.logs(session, filled_sqlite.ids["done"])) == 2


def test_running_jobs_continue_from_their_last_state(filled_sqlite: Filled, other: Settings) -> None:
    report = restore(other, backup_of(filled_sqlite.settings), "x.tar")
    ids = filled_sqlite.ids
    with db.writing(other) as session:
        going, waiting = jobs.get(session, ids["going"]), jobs.get(session, ids["waiting"])
        assert (going.state, going.attempt, going.attempt_cap, going.done) == ("INTERRUPTED", 2, 6, 30)
        assert (going.child, going.owner, going.lease_until) == ({}, "", None), "nobody ends the old home's process"
        assert (waiting.state, waiting.after_id, waiting.published_at) == ("QUEUED", ids["going"], None)
        assert Path(waiting.request["path"]) == other.home / "uploads" / "abc" / "prompts.jsonl"
        assert Path(waiting.request["path"]).read_bytes() == b'{"prompt": "x"}\n'
        assert [job.id for job in jobs.publishable(session)] == [ids["going"]]
        assert not processes.alive(session) and session.query(Run).filter_by(state="QUEUED").count() == 0
    half = other.home / "checkpoints" / ids["half"] / "attempt-2"
    assert sorted(p.name for p in half.iterdir()) == ["state-30"], "whole states, nothing half-made"
    assert report.jobs_going_on == 1


def test_secrets_and_logins_come_along_only_when_asked(filled_sqlite: Filled, tmp_path: Path) -> None:
    without_secrets, with_secrets = backup_of(filled_sqlite.settings), backup_of(filled_sqlite.settings, secrets=True)
    assert b"token-canary" not in without_secrets.getvalue() and b"token-canary" in with_secrets.getvalue()
    assert not any("logins" in name or "secrets" in name for name in names(without_secrets))
    assert any("rows/logins" in name for name in names(with_secrets))
    back_up(filled_sqlite.settings, target := tmp_path / "b.tar.gz")
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_compressed_by_its_name(filled_sqlite: Filled, other: Settings, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"home{ending}"
    report = back_up(filled_sqlite.settings, target)
    assert report.bytes == target.stat().st_size and not report.wrong
    with target.open("rb") as source:
        assert restore(other, source, target.name).rows == report.rows - 1  # a heartbeat stays behind


def test_a_name_that_is_no_tars_or_taken_is_refused(filled_sqlite: Filled, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ends with one of .tar"):
        back_up(filled_sqlite.settings, tmp_path / "home.zip")
    write(tmp_path / "home.tar", b"mine")
    with pytest.raises(Conflict, match="already exists"):
        back_up(filled_sqlite.settings, tmp_path / "home.tar")
    assert (tmp_path / "home.tar").read_bytes() == b"mine"


def test_rows_are_of_one_moment_while_others_write(filled: Filled, other: Settings) -> None:
    """A thread keeps writing pairs of experiments, each in one transaction, so a snapshot contains only whole pairs."""
    ended = threading.Event()

    def write_pairs() -> None:
        number = 0
        while not ended.is_set():
            with db.writing(filled.settings) as session:
                session.add_all([Experiment(name=f"pair-{number}"), Experiment(name=f"pair-{number}")])
            number += 1

    thread = threading.Thread(target=write_pairs)
    thread.start()
    try:
        for turn in range(2):
            settings = replace(other, home=other.home / str(turn), database_url=f"sqlite:///{other.home}/{turn}/x.db")
            restore(settings, backup_of(filled.settings), "x.tar")
            pairs = [row["name"] for row in rows_of(settings)["experiments"] if row["name"].startswith("pair-")]
            assert len(pairs) == 2 * len(set(pairs))
    finally:
        ended.set()
        thread.join()


def test_a_file_that_changes_while_it_is_read_is_read_again(
    filled_sqlite: Filled, other: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint gets a new config and new checksums while the backup reads it, as a tuning does."""
    home, ids = filled_sqlite.settings.home, filled_sqlite.ids
    heads, original, swapped = home / "checkpoints" / ids["heads"] / "attempt-1", backup._Writer.files, []

    def swap(writer: backup._Writer, paths: list[Path]) -> bool:
        whole = original(writer, paths)
        if paths == [heads / "model.safetensors"] and not swapped:
            write(heads / "config.json", b'{"drafting": {}}')
            lines = (heads / "SHA256SUMS").read_text().splitlines()
            lines[0] = f"{digest(heads / 'config.json')}  config.json"
            write(heads / "SHA256SUMS", "\n".join(lines).encode())
            write(heads / "old.txt", b"").unlink()
            swapped.append(paths)
        return whole

    monkeypatch.setattr(backup._Writer, "files", swap)
    monkeypatch.setattr(backup, "PAUSE", 0)
    packed = backup_of(filled_sqlite.settings)
    assert names(packed).count(f"home/checkpoints/{ids['heads']}/attempt-1/config.json") == 2
    packed.seek(0)
    report = restore(other, packed, "x.tar")
    assert not report.wrong
    assert (other.home / "checkpoints" / ids["heads"] / "attempt-1" / "config.json").read_bytes() == b'{"drafting": {}}'


def test_a_state_that_is_removed_while_it_is_read_is_whole(
    filled_sqlite: Filled, other: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    original, ids = backup._Writer._add, filled_sqlite.ids
    folder = filled_sqlite.settings.home / "checkpoints" / ids["half"] / "attempt-2" / "state-30"

    def remove_after_first(writer: backup._Writer, name: str, *rest) -> bool:  # noqa: ANN002
        if "/state-30/" in name:
            shutil.rmtree(folder, ignore_errors=True)
        return original(writer, name, *rest)

    monkeypatch.setattr(backup._Writer, "_add", remove_after_first)
    restore(other, backup_of(filled_sqlite.settings), "x.tar")
    state = other.home / "checkpoints" / ids["half"] / "attempt-2" / "state-30"
    assert sorted(p.name for p in state.iterdir()) == ["draft.safetensors", "optimizer.safetensors", "state.json"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("flip", "model.safetensors differs from the sha256 of its row"),
        ("sums", "config.json differs from SHA256SUMS"),
        ("gone", "its files are missing"),
    ],
)
def test_damaged_files_are_reported_and_the_rest_is_backed_up(
    filled_sqlite: Filled,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    tmp_path: Path,
    damage,
    message,
) -> None:
    monkeypatch.setattr(backup, "PAUSE", 0)
    home, ids = filled_sqlite.settings.home, filled_sqlite.ids
    heads = home / "checkpoints" / ids["heads"] / "attempt-1"
    if damage == "flip":
        write(heads / "model.safetensors", b"headz")
    elif damage == "sums":
        write(heads / "config.json", b"[]")
    else:
        [p.unlink() for p in heads.rglob("*") if p.is_file()]
    assert main(["backup", str(tmp_path / "b.tar"), "--json"]) == 1
    captured = capsys.readouterr()
    assert message in captured.err and message in json.loads(captured.out.splitlines()[-1])["wrong"][0]
    assert tarfile.is_tarfile(tmp_path / "b.tar")


def test_a_used_home_or_database_is_refused(filled_sqlite: Filled, other: Settings) -> None:
    packed = backup_of(filled_sqlite.settings)
    before = contents(filled_sqlite.settings.home)
    with pytest.raises(Conflict, match="is not empty"):
        restore(filled_sqlite.settings, packed, "x.tar")
    assert contents(filled_sqlite.settings.home).keys() == before.keys()
    migrate(other)
    with db.writing(other) as session:
        session.add(Experiment(name="mine"))
    packed.seek(0)
    with pytest.raises(Conflict, match="rows in experiments"):
        restore(other, packed, "x.tar")
    with db.reading(other) as session:
        assert session.query(Experiment).one().name == "mine"


def test_a_home_that_was_only_started_once_counts_as_empty(filled_sqlite: Filled, other: Settings) -> None:
    """Containers migrate the database and register the starter before anyone can restore."""
    migrate(other)
    with db.writing(other) as session:
        base = Base(name="starter", source="starter", location="starter", state="ready")
        session.add(base)
        session.flush()
        session.add(Checkpoint(name="starter", base_id=base.id, method="eagle3", path="/x/models/starter_head"))
    write(other.home / "secrets" / "inference-token", b"of the new home")
    restore(other, backup_of(filled_sqlite.settings, secrets=True), "x.tar")
    with db.reading(other) as session:
        assert [b.name for b in session.query(Base)] == ["tiny"]
    assert (other.home / "secrets" / "inference-token").read_bytes() == b"of the new home"


def test_while_the_workbench_runs_nothing_is_restored(
    filled_sqlite: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    back_up(filled_sqlite.settings, tmp_path / "b.tar")
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "other"))
    from speculoos.settings import load

    lock = HomeLock(load())
    assert lock.acquire("up", ())
    try:
        assert main(["restore", str(tmp_path / "b.tar")]) == 1
        assert f"Process {os.getpid()} uses the home" in capsys.readouterr().err
    finally:
        lock.release()
    migrate(load())
    with db.writing(load()) as session:
        processes.beat(session, "web")
    assert main(["restore", str(tmp_path / "b.tar")]) == 1
    assert "The workbench is running (web)" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "cut at a member", "flipped", "no tar", "other tar", "gz cut"])
def test_a_damaged_archive_leaves_the_home_empty(
    filled_sqlite: Filled, other: Settings, tmp_path: Path, damage
) -> None:
    packed = backup_of(filled_sqlite.settings).getvalue()
    if damage == "cut":
        packed = packed[: len(packed) // 2 + 100]
    elif damage == "cut at a member":
        packed = packed[: packed.index(b"sums.txt")]
    elif damage == "flipped":
        at = packed.index(b"base weights")
        packed = packed[:at] + b"X" + packed[at + 1 :]
    elif damage == "no tar":
        packed = b"hello" * 1000
    elif damage == "other tar":
        packed = tar_of(("readme.txt", b"hello"))
    else:
        back_up(filled_sqlite.settings, tmp_path / "b.tar.gz")
        packed = (tmp_path / "b.tar.gz").read_bytes()[:2000]
    with pytest.raises(BadInput, match="damaged|cut off|not a backup|not a path of a home"):
        restore(other, io.BytesIO(packed), "x.tar")
    assert not contents(other.home) or not any(p.is_dir() for p in other.home.iterdir()), "nothing but an empty home"
    restore(other, backup_of(filled_sqlite.settings), "x.tar")


def tar_of(*members: tuple[str | tarfile.TarInfo, bytes], head: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in [(backup.HEAD, head), *members] if head else members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


HEAD = json.dumps(
    {"format": 1, "revision": "0001", "home": "/x", "files": True, "made_at": "2026-11-22T05:00:00+00:00"}
).encode()


@pytest.mark.parametrize(
    "member",
    [
        "../outside",
        "home/../../outside",
        "/etc/passwd",
        "home/models/../../outside",
        "home//models/x",
        "home/speculoos.db",
        "home/.restore/filling",
        "home/models/a\x1bb",
        "rows/jobs/x.py",
        special("home/models/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("home/models/link", tarfile.LNKTYPE, "/etc/passwd"),
        special("home/models/device", tarfile.CHRTYPE),
        special("home/models/pipe", tarfile.FIFOTYPE),
        special("home/models/folder", tarfile.DIRTYPE),
    ],
    ids=lambda member: getattr(member, "name", member),
)
def test_members_that_no_backup_has_are_refused(other: Settings, tmp_path: Path, member) -> None:
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="not a path of a home|not an ordinary file"):
        restore(other, io.BytesIO(tar_of((member, b""), head=HEAD)), "x.tar")
    assert set(tmp_path.rglob("*")) - before <= {other.home}


def test_an_archive_of_a_newer_speculoos_says_so(other: Settings) -> None:
    for change, message in (
        ({"revision": "9999"}, "newer Speculoos .revision 9999"),
        ({"format": 2}, "newer Speculoos"),
    ):
        head = json.dumps({**json.loads(HEAD), **change}).encode()
        with pytest.raises(Unavailable, match=message):
            restore(other, io.BytesIO(tar_of(head=head)), "x.tar")


def test_a_restore_that_breaks_off_late_leaves_nothing_and_can_be_done_again(
    filled: Filled, other: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ops import restore as restoring

    def full(moves) -> None:  # noqa: ANN001
        for source, target in moves[:3]:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        raise OSError(28, "No space left on device")

    packed = backup_of(filled.settings)
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_move_files", full)
        with pytest.raises(Unavailable, match="is full; nothing was restored"):
            restore(other, packed, "x.tar")
    assert not any(p.is_dir() for p in other.home.iterdir())
    assert all(not rows for rows in rows_of(migrated(other)).values())
    packed.seek(0)
    restore(other, packed, "x.tar")


def migrated(settings: Settings) -> Settings:
    db.upgrade(settings)
    return settings


@pytest.mark.integration
def test_a_restore_that_was_killed_is_refused_by_commands_and_begun_anew(
    filled_sqlite: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    back_up(filled_sqlite.settings, tmp_path / "b.tar")
    code = (
        "import os, sys; from ops import restore; "
        "restore._move_files = lambda moves: (restore.os.makedirs(moves[0][1].parent), "
        "moves[0][0].rename(moves[0][1]), os._exit(9)); from cli.main import main; main(['restore', sys.argv[1]])"
    )
    environment = {**os.environ, "SPECULOOS_HOME": str(tmp_path / "other")}
    broken = subprocess.run([sys.executable, "-c", code, str(tmp_path / "b.tar")], env=environment, timeout=120)
    assert broken.returncode == 9 and (tmp_path / "other" / BUSY).is_dir()
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "other"))
    assert main(["jobs", "list"]) == 1
    assert "is running or was interrupted" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "b.tar"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["jobs_going_on"] == 1
    assert main(["models", "list"]) == 0


@pytest.mark.integration
def test_through_a_pipe_and_back(filled_sqlite: Filled, tmp_path: Path) -> None:
    """Like `docker compose exec -T web speculoos backup - > FILE`."""
    command, options = [sys.executable, "-m", "cli.main"], {"capture_output": True, "timeout": 120}
    written = subprocess.run([*command, "backup", "-"], check=True, **options)
    environment = {**os.environ, "SPECULOOS_HOME": str(tmp_path / "other")}
    restored = subprocess.run(
        [*command, "restore", "-", "--json"], input=written.stdout, capture_output=True, env=environment
    )
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout.splitlines()[-1])["files"] > 5


def test_memory_stays_small(filled_sqlite: Filled, other: Settings) -> None:
    """60 MB of weights and 12 MB of rows, written and read back in a few MB."""
    home, ids = filled_sqlite.settings.home, filled_sqlite.ids
    with (home / "models" / ids["base"] / "big.safetensors").open("wb") as big:
        big.truncate(60_000_000)
    with db.writing(filled_sqlite.settings) as session:
        run = runs.create_run(session, "chat", "tiny", {})
        runs.add_steps(session, run.id, [{"index": n, "text": "x" * 6000} for n in range(2000)])
    tracemalloc.start()
    with (home / "b.tar").open("wb") as out:
        stream(filled_sqlite.settings, out)
    with (home / "b.tar").open("rb") as source:
        restore(other, source, "b.tar")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6


@pytest.mark.integration
def test_a_full_disk_leaves_no_half_backup(filled_sqlite: Filled, small_disk: Path) -> None:
    with (filled_sqlite.settings.home / "models" / filled_sqlite.ids["base"] / "big").open("wb") as big:
        big.truncate(30_000_000)
    with pytest.raises(Unavailable, match="is full, so b.tar was not written"):
        back_up(filled_sqlite.settings, small_disk / "b.tar")
    assert list(small_disk.iterdir()) == []


def test_a_row_that_the_database_refuses_is_named(filled_sqlite: Filled, database: Settings, tmp_path: Path) -> None:
    """SQLite keeps texts of any length, PostgreSQL does not."""
    if database.database_url.startswith("sqlite"):
        pytest.skip("SQLite refuses nothing here")
    with db.writing(filled_sqlite.settings) as session:
        session.add(Experiment(name="x" * 300))
    moved = replace(database, home=tmp_path / "moved")
    with pytest.raises(BadInput, match="rows 1 to 2 of the table experiments: value too long"):
        restore(moved, backup_of(filled_sqlite.settings), "x.tar")
    assert db.revision(moved) == "", "no table is left"


def test_a_model_outside_of_the_home_is_named(filled_sqlite: Filled, tmp_path: Path) -> None:
    write(tmp_path / "mine" / "model.safetensors", b"mine")
    with db.writing(filled_sqlite.settings) as session:
        session.add(Base(name="mine", source="folder", location="x", path=str(tmp_path / "mine"), state="ready"))
        session.add(Dataset(name="empty", kind="prompts", state="failed"))
    report = back_up(filled_sqlite.settings, tmp_path / "b.tar")
    assert report.outside == [f"mine ({tmp_path / 'mine'})"] and not report.wrong
