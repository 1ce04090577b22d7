"""The zip for a bug report holds what helps, and none of what must not leave: canaries stand everywhere."""

import json
import zipfile
from pathlib import Path

import pytest

from cli.main import main
from ops.bundle import shape, write_bundle
from ops.health import HealthPart
from speculoos.settings import load
from tracking import db, runs
from tracking.tables import Base, Dataset, Job, JobLog, now

CANARY = {
    "password": "canary-password-9431",
    "inference": "canary-inference-token-1",
    "session": "canary-session-key-778",
    "metrics": "canary-metrics-token-2",
    "hub": "hf_" + "CanaryHubToken" * 3,
    "database": "canary-database-pass",
    "endpoint": "canary-endpoint-key-55",
    "prompt": "what does the canary sing",
    "answer": "the canary answers in verse",
    "system": "you are a canary of few words",
    "logged": "a canary whose text an exception quoted",
    "name": "canary data of the customer",
    "note": "canary note",
    "row": "canary job log line",
}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of a home in which every canary stands somewhere."""
    home = tmp_path / "home"
    (tmp_path / "password").write_text(CANARY["password"])
    for name, value in {
        **{"SPECULOOS_HOME": str(home), "SPECULOOS_PASSWORD_FILE": str(tmp_path / "password")},
        **{"SPECULOOS_METRICS_TOKEN": CANARY["metrics"], "HF_TOKEN": CANARY["hub"]},
        **{"REDIS_URL": f"redis://user:{CANARY['database']}@127.0.0.1:9/0", "BIG_API_KEY": CANARY["endpoint"]},
    }.items():
        monkeypatch.setenv(name, value)
    fill(home)
    settings = load()
    target = tmp_path / "bundle.zip"
    look = {"web": HealthPart(False, f"answered 500 with {CANARY['metrics']}", "See web.log.")}
    write_bundle(settings, target, look)
    return target


def fill(home: Path) -> None:
    (home / "secrets").mkdir(parents=True)
    (home / "secrets" / "session-key").write_text(CANARY["session"])
    (home / "secrets" / "inference-token").write_text(CANARY["inference"])
    (home / "settings.toml").write_text('[endpoints.big]\nurl = "http://u:p@127.0.0.1:1/v1"\nkey_env = "BIG_API_KEY"\n')
    settings = load()
    db.upgrade(settings)
    with db.writing(settings) as session:
        request = {"messages": [{"role": "user", "content": f"hello\n{CANARY['prompt']}"}]}
        run = runs.create_run(session, "chat", "tiny", request)
        run.state, run.text, run.error = "FAILED", CANARY["answer"], CANARY["prompt"]
        wanted = {"system_prompt": CANARY["system"], "max_tokens": 64, "method": "medusa", "settings": {"lr": 1e-3}}
        job = Job(name=f"Generate {CANARY['name']}", kind="generate_data", queue="gpu", state="FAILED", request=wanted)
        job.error = f"Row 7 cannot be used: '{CANARY['logged']}' has no answer; see “{CANARY['name']}”."
        job.error_code, job.finished_at, job.note = "bad_input", now(), CANARY["note"]
        session.add(job)
        session.flush()
        session.add(JobLog(job_id=job.id, attempt=1, message=CANARY["row"]))
        session.add(Base(name=CANARY["name"], source="hub", location="x", note=CANARY["note"]))
        session.add(Dataset(name=CANARY["name"], kind="prompts", report={"bad": [{"reason": CANARY["prompt"]}]}))
    logs = home / "logs"
    logs.mkdir()
    (logs / f"{job.id}.log").write_text(f"{CANARY['row']}\n{CANARY['prompt']}\n")
    lines = [f"GET /playground?prompt={CANARY['prompt'].replace(' ', '+')} 200", f"token {CANARY['inference']}"]
    lines += [f"ValueError: cannot parse '{CANARY['logged']}'", f"prompt: {CANARY['prompt']} -> {CANARY['answer']}"]
    lines += [f"postgresql://me:{CANARY['database']}@db/x refused", f"Bearer {CANARY['metrics']}", "kept: started"]
    for name in ("web", "inference", "worker-gpu"):
        (logs / f"{name}.log").write_text("old line\n" * 1000 + "\n".join(lines) + "\n")


def test_nothing_secret_and_nothing_written_is_in_it(told: Path) -> None:
    with zipfile.ZipFile(told) as bundle:
        texts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    for what, canary in CANARY.items():
        for name, text in texts.items():
            assert canary not in text and canary.replace(" ", "+") not in text, f"{what} in {name}"
    assert not any("canary" in text.lower() for text in texts.values())
    assert told.stat().st_mode & 0o777 == 0o600


def test_what_helps_is_in_it(told: Path) -> None:
    with zipfile.ZipFile(told) as bundle:
        found = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert json.loads(found["doctor.json"])["web"]["ok"] is False
    assert "torch" in json.loads(found["versions.json"])["packages"]
    settings = json.loads(found["settings.json"])
    assert (
        settings["password"] == "set" and settings["max_rows"] == 1_000_000 and settings["redis_url"].endswith(":9/0")
    )
    database = json.loads(found["database.json"])
    assert database["revision"] == database["newest"] and database["jobs"]["gpu FAILED"] == 1
    (job,) = json.loads(found["failed-jobs.json"])
    assert job["error"].startswith("Row 7 cannot be used:") and job["error_code"] == "bad_input"
    assert job["request"]["max_tokens"] == 64 and job["request"]["method"] == "medusa"
    assert job["request"]["system_prompt"] == f"({len(CANARY['system'])} characters)"
    assert found["logs/web.log"].endswith("kept: started\n") and len(found["logs/web.log"].splitlines()) == 300


def test_a_broken_home_has_a_bundle_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "speculoos.db").write_bytes(b"no database at all" * 1000)
    assert main(["doctor", "--bundle", str(tmp_path / "b.zip")]) == 1
    assert "for a bug report" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
        assert "is damaged" in json.loads(bundle.read("database.json"))["error"]


def test_a_request_keeps_its_shape_and_loses_its_words() -> None:
    request = {"limit": 5, "deep": [{"text": "abc", "on": True, "none": None}], "kind": "train", "empty": ""}
    assert shape(request) == {
        **{"limit": 5, "deep": [{"text": "(3 characters)", "on": True, "none": None}], "kind": "train", "empty": ""}
    }
