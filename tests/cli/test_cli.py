"""The command line: one sentence for every error, JSON as the last line, no services needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from models.methods import METHODS
from models.methods.recipes import list_recipes
from models.methods.settings import settings_of
from speculoos import machine
from speculoos.settings import Endpoint, Settings, load
from tracking import db, leases
from tracking.tables import Base, Checkpoint, Dataset, Job

COMMANDS = (
    *("up", "doctor", "models", "data", "train", "jobs", "generate", "evaluate", "export", "serve", "plan", "replay"),
    *("worker", "quickstart", "login-link", "backup", "restore", "cleanup", "verify", "keys"),
)


@pytest.fixture
def base(home: Settings, tiny_base: Path) -> Base:
    with db.writing(home) as session:
        row = Base(name="tiny", source="folder", location=str(tiny_base), path=str(tiny_base), state="ready")
        session.add(row)
    return row


def last_json(capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    captured = capsys.readouterr()
    return json.loads(captured.out.strip().splitlines()[-1]), captured.err


def test_without_a_command_the_help_is_shown_and_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in [
        "up",
        "doctor",
        "models",
        "data",
        "train",
        "jobs",
        "generate",
        "evaluate",
        "export",
        "verify",
        "serve",
        "worker",
        "quickstart",
    ]:
        assert f"\n  {name} " in shown


def test_endpoints_are_added_and_listed(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Existing text of the settings file stays. A key is never stored, shown, or repeated in an error."""
    file = home.home / "settings.toml"
    file.parent.mkdir(exist_ok=True)
    written = '[endpoints."old"]\nurl = "http://old/v1"\n\n# for trainings\n[hidden_states.s]\nurl = "http://s"\n'
    file.write_text(written)
    file.chmod(0o640)
    monkeypatch.setenv("TEAM_KEY", "sk-secret")
    command = ["endpoints", "add", "team", "--url", "http://a/v1", "--url", "http://b/v1", "--key-env", "TEAM_KEY"]
    assert main([*command, "--model", 'm"x', "--timeout", "30", "--json"]) == 0
    result, stderr = last_json(capsys)
    assert result["urls"] == ["http://a/v1", "http://b/v1"] and result["key_set"] and "use it from now on" in stderr
    assert file.read_text().startswith(written) and file.stat().st_mode & 0o777 == 0o640
    expected = Endpoint("team", ["http://a/v1", "http://b/v1"], "TEAM_KEY", 'm"x', timeout=30.0)
    assert load().endpoints["team"] == expected and load().state_servers["s"].url == "http://s"
    assert main(["endpoints"]) == 0
    shown = capsys.readouterr().out
    assert "TEAM_KEY is set" in shown and "none needed" in shown and "sk-secret" not in shown + file.read_text()

    for arguments, message in (
        (command, "already a server 'team'"),
        (["endpoints", "add", "a b", "--url", "http://a"], "use up to 64 letters"),
        (["endpoints", "add", "x", "--url", "ftp://a"], "expected http"),
        (["endpoints", "add", "x", "--url", "http://me:sk-other@a"], "leave user and password out"),
        (["endpoints", "add", "x", "--url", "http://a", "--key-env", "sk-other"], "not a key"),
    ):
        assert main(arguments) in (1, 2)
        stderr = capsys.readouterr().err
        assert message in stderr and "sk-other" not in stderr


def test_the_help_of_train_lists_recipes_and_the_settings_of_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    def help_of(*arguments: str) -> str:
        assert main(["train", *arguments, "--help"]) == 0
        return without_whitespace(capsys.readouterr().out)

    def without_whitespace(text: str) -> str:  # lines may be wrapped at any position
        return "".join(text.split())

    plain = help_of()
    assert all(
        without_whitespace(f"{recipe.name} {recipe.method}: {recipe.about}") in plain for recipe in list_recipes()
    )
    for name, method in METHODS.items():
        listed = help_of(name)
        assert all(
            f"{setting.name}=" in listed and without_whitespace(setting.help) in listed
            for setting in settings_of(method.config)
        )
    assert "ttt_steps=3Training-timetest" in help_of("eagle3") and "[awholenumber,1to16]" in help_of("eagle3")
    assert "ttt_steps=7" in help_of("eagle3-paper", "--model", "x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Missing argument"),
        (["data", "list", "--bogus"], "No such option: --bogus"),
        (["nonsense"], "No such command"),
        (["models", "show", "nothing"], "There is no model 'nothing'"),
        (["jobs", "show", "nothing"], "There is no job 'nothing'"),
        (["data", "import", "/nowhere/x.jsonl"], "there is no such file"),
        (["data", "generate", "--prompts", "p"], "Choose the model that generates"),
        (["generate", "--model", "nothing", "--prompt", "x"], "There is no model 'nothing'"),
        (["generate", "--model", "nothing", "--prompt", " "], "--prompt: expected a text"),
        (["evaluate", "--model", "nothing"], "There is no model 'nothing'"),
        (["export", "nothing"], "There is no draft 'nothing'"),
        (["verify", "nothing"], "There is no model, draft or dataset 'nothing'"),
        (["train-node", "head"], "Expected host:port, got 'head'"),
        (["worker", "--queue", "cpu"], "There is no queue 'cpu'"),
        (["models", "add", "x", "--source", "web"], "expected one of hub"),
    ],
)
def test_every_error_is_one_sentence_and_an_object(
    home: Settings, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) in (1, 2)
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1 and "Traceback" not in captured.err
    if arguments[0] not in ("worker", "train-node"):
        assert main([*arguments, "--json"]) in (1, 2)
        result, stderr = last_json(capsys)
        assert message in result["error"]["message"] and result["error"]["code"] and message in stderr


def test_a_bad_setting_is_named(home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    for value in ("many", "99999"):
        monkeypatch.setenv("SPECULOOS_PORT", value)
        assert main(["models", "list"]) == 2
        assert capsys.readouterr().err.startswith("SPECULOOS_PORT: expected a port from 1 to 65535")


@pytest.mark.parametrize("content", [b"endpoints = 5", b"\xff\xfe", b"[endpoints", b"[endpoints.x]\nport = 1"])
def test_a_broken_settings_file_is_named(home: Settings, content: bytes, capsys: pytest.CaptureFixture) -> None:
    (home.home / "settings.toml").write_bytes(content)
    assert main(["models", "list"]) == 2
    assert capsys.readouterr().err.startswith(f"{home.home / 'settings.toml'}: ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("url = 5", "url: expected http://… or https://… in quotes, or a list of them, got 5"),
        ('url = "ftp://x"', "url: expected http"),
        ('url = "http://x"\nconcurrency = "8"', "concurrency: expected a whole number, 1 or more, got '8'"),
        ('url = "http://x"\nretries = -1', "retries: expected a whole number, 0 or more, got -1"),
        ('url = "http://x"\ntimeout = "x"', "timeout: expected seconds, got 'x'"),
    ],
)
def test_a_wrong_endpoint_is_named_with_its_key(
    home: Settings, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.home / "settings.toml").write_text(f"[endpoints.mine]\n{line}\n")
    assert main(["models", "list"]) == 2
    assert f"settings.toml: [endpoints.mine] {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("url = 5", "[hidden_states.mine] url: expected http://… or https://… in quotes, got 5"),
        ("port = 5", "[hidden_states.mine] takes url, kind, key_env, model, concurrency, timeout; url is required"),
        ('url = "http://x"\nkind = "tgi"', "kind: expected 'speculoos' or 'vllm', got 'tgi'"),
        ('url = "http://x"\nconcurrency = 0', "concurrency: expected a whole number, 1 or more, got 0"),
        ('url = "file:///etc"', "url: expected http"),
    ],
)
def test_a_wrong_server_of_hidden_states_is_named_with_its_key(
    home: Settings, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.home / "settings.toml").write_text(f"[hidden_states.mine]\n{line}\n")
    assert main(["models", "list"]) == 2
    assert message in capsys.readouterr().err


def test_an_unexpected_error_is_json_too(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("tracking.queries.bases", broken)
    assert main(["models", "list", "--json"]) == 70
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["code"] == "unexpected" and "ZeroDivisionError" in captured.err


def test_the_limit_of_listed_jobs_is_respected(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with db.writing(home) as session:
        session.add_all([Job(name=f"job {i}", kind="train", queue="gpu", state="CANCELLED") for i in range(120)])
    for limit in (110, 7):
        assert main(["jobs", "list", "--limit", str(limit), "--json"]) == 0
        assert len(last_json(capsys)[0]) == limit


def test_a_home_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "file" / "home"))
    for arguments in (["models", "list"], ["up"], ["doctor"]):
        assert main(arguments) == 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err and "Please report" not in captured.err
        assert str(tmp_path / "file") in captured.err + captured.out


def test_models_list_shows_the_starter_with_its_folder_in_a_home_that_never_ran(
    tmp_path: Path, tiny_base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As right after installation: no home, no database."""
    from models.card import make_card

    starter = tmp_path / "starter"
    starter.mkdir()
    for file in tiny_base.iterdir():
        (starter / file.name).write_bytes(file.read_bytes())
    (starter / "card.json").write_text(json.dumps(make_card(starter)))
    monkeypatch.setenv("SPECULOOS_STARTER", str(starter))
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "new home"))
    assert main(["models", "list", "--json"]) == 0
    (row,), _ = last_json(capsys)
    assert row["name"] == "starter" and Path(row["path"], "config.json").is_file()
    assert main(["models", "rm", "starter"]) == 1
    assert "cannot be deleted" in capsys.readouterr().err


def test_models_can_be_renamed_and_deleting_one_names_what_depends_on_it(
    home: Settings, base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    with db.writing(home) as session:
        session.add(Checkpoint(name="heads", method="medusa", base_id=base.id, state="ready"))
    assert main(["models", "rename", "tiny", "small"]) == 0
    assert main(["models", "rename", "small@heads", "better"]) == 0
    assert main(["models", "rm", "small"]) == 1
    assert "better" in capsys.readouterr().err
    assert main(["models", "show", "small@better", "--json"]) == 0
    shown, _ = last_json(capsys)
    assert shown["base"] == "small" and shown["method"] == "medusa"
    assert main(["models", "rm", "small", "--force", "--json"]) == 0
    assert main(["models", "list", "--json"]) == 0
    rows, _ = last_json(capsys)
    assert "small" not in [m["name"] for m in rows]
    assert Path(base.path).is_dir(), "a folder of the user's own was deleted"


def test_jobs_show_their_place_and_can_be_cancelled(
    home: Settings, base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    from workers.jobs.requests import Train
    from workers.jobs.submit import submit

    with db.writing(home) as session:
        data = Dataset(name="d", kind="conversations", state="ready")
        session.add(data)
    request = Train(method="medusa", base_id=base.id, dataset_id=data.id)
    first, second = submit(request, settings=home), submit(request, settings=home)
    assert main(["jobs", "list", "--json"]) == 0
    rows, _ = last_json(capsys)
    assert [j["id"] for j in rows] == [second.id, first.id]
    assert rows[0]["position"] == 2 and "waits" in rows[0]
    assert main(["jobs", "cancel", first.id[:8]]) == 0
    assert "cancelled" in capsys.readouterr().out
    assert main(["jobs", "cancel", first.id[:8]]) == 1
    assert "has ended already" in capsys.readouterr().err
    assert main(["jobs", "rm", first.id, "--force"]) == 0
    with db.reading(home) as session:
        assert session.get(Job, first.id) is None


def test_generate_gives_the_fixed_shape_in_fp32(home: Settings, base: Base, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    command = ["generate", "--model", "tiny", "--prompt", "hello 👋", "--max-tokens", "12", "--json"]
    assert main(command) == 0
    result, _ = last_json(capsys)
    tokenizer = AutoTokenizer.from_pretrained(base.path)
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    chat = [{"role": "user", "content": "hello 👋"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    expected = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    assert result["token_ids"] == expected
    assert [t["id"] for t in result["tokens"]] == expected
    assert "".join(t["text"] for t in result["tokens"]) == result["text"]
    assert {t["origin"] for t in result["tokens"]} == {"plain"}
    assert result["mean_accepted_length"] == 1.0 and result["tokens_per_second"] > 0
    assert main([*command[:-1], "--draft", "drafter=ngram", "--json"]) == 0
    drafted, _ = last_json(capsys)
    assert drafted["token_ids"] == expected, "drafting changed a greedy answer"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"speculoos \d+\.\d+\.\d+", capsys.readouterr().out.strip())


def test_typical_acceptance_at_temperature_0_warns_that_it_has_no_effect(
    home: Settings, base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--model", "tiny", "--prompt", "hi", "--max-tokens", "4", "--acceptance", "typical"]
    assert main(command) == 0
    assert "--acceptance typical has no effect at temperature 0" in capsys.readouterr().err
    assert main([*command, "--temperature", "0.7", "--seed", "1"]) == 0
    assert "no effect" not in capsys.readouterr().err


def test_a_tree_in_words_is_read_by_generate_and_evaluate(
    home: Settings, base: Base, heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate = ["generate", "--model", "tiny@heads", "--prompt", "hi", "--max-tokens", "8", "--json"]
    evaluate = ["evaluate", "--model", "tiny@heads", "--limit", "1", "--max-tokens", "4", "--json"]
    for command in (generate, evaluate):
        assert main([*command, "--draft", "tree=chain 2"]) == 0, capsys.readouterr()
        in_words, _ = last_json(capsys)
        assert main([*command, "--draft", "tree=[[0],[0,0]]"]) == 0
        as_paths, _ = last_json(capsys)
        assert in_words["acceptance_by_depth"] == as_paths["acceptance_by_depth"]
        assert main([*command, "--draft", "tree=chain x"]) == 2
        assert "chain 4" in capsys.readouterr().out


@pytest.fixture
def heads(home: Settings, base: Base) -> Path:
    """Medusa heads that repeat the base's next token, as the ready checkpoint `tiny@heads`."""
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.medusa import MedusaConfig, MedusaHeads

    loaded = load_base(base.path)
    shape = MedusaConfig(hidden_size=loaded.hidden_size, vocab_size=loaded.vocab_size, medusa_num_heads=3)
    folder = save_draft(home.home / "heads", MedusaHeads.from_base(shape, loaded), {"base": "tiny"})
    with db.writing(home) as session:
        session.add(Checkpoint(name="heads", method="medusa", base_id=base.id, state="ready", path=str(folder)))
    return folder


def test_drafting_with_a_checkpoint_gives_the_same_ids_by_name_and_by_folder(
    home: Settings, base: Base, heads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompt", "hello", "--max-tokens", "24", "--json"]
    answers = []
    for model in (
        ["--model", "tiny"],
        ["--model", "tiny", "--checkpoint", "heads"],
        ["--model", "tiny@heads"],
        ["--model", base.path, "--checkpoint", str(heads)],
    ):
        assert main(["generate", *model, *options]) == 0
        answers.append(last_json(capsys)[0])
    assert len({tuple(a["token_ids"]) for a in answers}) == 1
    assert {t["origin"] for t in answers[0]["tokens"]} == {"plain"}
    assert {t["origin"] for t in answers[1]["tokens"]} <= {"draft", "target"}
    assert main(["generate", "--model", "tiny@heads", "--checkpoint", "heads", *options]) == 2


def test_evaluate_gives_the_fixed_shape_on_a_question_file(
    home: Settings, base: Base, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [
        {"question_id": i, "category": "math" if i % 2 else "writing", "turns": [f"one {i}", "and two"]}
        for i in range(4)
    ]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(q) + "\n" for q in questions))
    command = ["evaluate", "--model", "tiny", "--checkpoint", "heads", "--questions", str(file)]
    assert main([*command, "--limit", "3", "--max-tokens", "12", "--json"]) == 0
    result, progress = last_json(capsys)
    assert result["identical_to_plain"] is True and result["questions"] == 3 and result["prompts"] == 6
    assert result["mean_accepted_length"] >= 1.0 and 1 <= len(result["acceptance_by_depth"]) <= 3
    assert result["tokens_per_second"] > 0 and result["plain_tokens_per_second"] > 0
    assert set(result["per_category"]) == {"math", "writing"}
    assert re.search(r"\b([3-9])/\1 questions", progress), "of one to three passes"
    assert result["shared_with"] == ""
    with db.writing(home) as session:
        assert leases.holder(session, machine.device_key("cpu", home.home)) == "", "given back"
        leases.acquire(session, machine.device_key("cpu", home.home), "run:other", 60)
    assert main([*command, "--limit", "1", "--max-tokens", "4", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["shared_with"] == "a measurement"
    assert "shared with a measurement" in captured.err
    assert main(["evaluate", "--model", "tiny", "--questions", "/nowhere.jsonl"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_model_may_be_a_folder(home: Settings, tiny_base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", str(tiny_base), "--prompt", "hi", "--max-tokens", "4"]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_export_writes_the_zip_whose_sums_hold(
    home: Settings, base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib
    import zipfile

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "README.md"):
        (folder / name).write_text(name)
    with db.writing(home) as session:
        session.add(Checkpoint(name="heads", method="medusa", base_id=base.id, state="ready", path=str(folder)))
    assert main(["export", "tiny@heads", "-o", str(tmp_path / "out.zip"), "--json"]) == 0
    result, _ = last_json(capsys)
    with zipfile.ZipFile(result["path"]) as archive:
        assert sorted(archive.namelist()) == ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]
        for line in archive.read("SHA256SUMS").decode().splitlines():
            digest, name = line.split()
            assert hashlib.sha256(archive.read(name)).hexdigest() == digest


def test_doctor_names_every_part_and_how_to_mend_it(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 1
    report, _ = last_json(capsys)
    assert report["healthy"] is False
    parts = report["parts"]
    assert parts["python"]["ok"] and parts["packages"]["ok"] and parts["database"]["ok"] and parts["device"]["ok"]
    for name in ("broker", "worker-gpu", "worker-io", "reconciler", "web", "inference"):
        assert parts[name]["ok"] is False and "speculoos up" in parts[name]["hint"], name


@pytest.mark.integration
def test_the_installed_command_prints_only_its_error_sentence(home: Settings) -> None:
    command = [str(Path(sys.executable).with_name("speculoos")), "models", "show", "x"]
    completed = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=240)
    assert completed.returncode == 2 and completed.stdout == ""
    assert completed.stderr.strip().startswith("There is no model 'x'")


def test_a_divided_job_between_its_shards_and_its_end_is_not_called_interrupted() -> None:
    from cli.follow import _progress_line

    job = Job(name="Measure heads", kind="matrix", queue="gpu", state="INTERRUPTED", shards=4)
    assert _progress_line(job) == "Measure heads: collecting results"
    job.shards = 0
    assert _progress_line(job) == "Measure heads: interrupted"


@pytest.mark.integration
def test_train_warns_first_that_no_server_reads_such_a_draft(home, tmp_path, capsys):
    """Phi's head has a bias. The dataset is not ready, so nothing is submitted."""
    from tests.tiny import make_tiny_base

    phi = str(make_tiny_base(tmp_path / "phi", "phi"))
    with db.writing(home) as session:
        session.add(Base(name="phi", source="folder", location=phi, path=phi, state="ready"))
        session.add(Dataset(name="answers", kind="conversations", path="/a", state="failed"))
    assert main(["train", "medusa", "--model", "phi", "--data", "answers"]) == 1
    stderr = capsys.readouterr().err
    assert "it can be used in Speculoos only" in stderr and "answers" in stderr
