"""What the pages show, from rows alone: no browser, no services."""

from dataclasses import replace
from datetime import timedelta

import gradio as gr
import pytest
from sqlalchemy import func, select

from app.pages import data, jobs, models, settings, train
from app.pages import home as home_page
from app.pages.data import BuiltInSets
from app.pages.jobs import clone, status_line
from app.views import data_view, guided_view, job_rows, job_view
from app.views.choices import response_models, valid_choice
from app.views.manage import delete, question, save
from app.views.server_forms import servers_view
from app.views.status_bar import job_progress
from app.widgets.list_query import ListQuery
from ops.health import HealthPart
from speculoos.errors import BadInput, Conflict, NotFound, Unsupported
from speculoos.settings import Settings
from tracking import jobs as rows_of_jobs
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint, Dataset, Experiment, Job, now
from workers.jobs import builtin, sizes
from workers.jobs.builtin import BUILT_IN
from workers.jobs.estimates import estimate
from workers.jobs.guided import EXPERIMENT
from workers.jobs.requests import GenerateData, Train
from workers.jobs.submit import add_built_in

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"
CARD = {
    **{"architecture": "LlamaForCausalLM", "parameters": 134_515_008, "layers": 30, "hidden_size": 576, "heads": 9},
    **{"kv_heads": 3, "vocabulary": 49_152, "dtype": "float32", "chat_template": True, "size_bytes": 538_060_032},
    "methods": {"medusa": "", "eagle": "", "eagle3": "It has no <b>middle</b>.", "draft": ""},
    "memory": {"float32": 600_000_000, "bfloat16": 300_000_000},
}


@pytest.fixture
def filled(home: Settings) -> Settings:
    """A home with a base, prompts, answers, a checkpoint and a job in each state."""
    with writing(home) as rows:
        base = Base(id="base", name=HOSTILE, source="folder", location="/x", path="/x", state="ready", card=CARD)
        prompts = Dataset(id="prompts", name=f"p {HOSTILE}", kind="prompts", state="ready", rows=100, bad_rows=1)
        prompts.report = {"bad": [{"line": 7, "reason": HOSTILE}], "turns": {"1": 90, "2": 10}}
        rows.add_all([base, prompts])
        rows.flush()
        answers = Dataset(id="answers", name="answers", kind="conversations", state="ready", rows=100, base_id="base")
        answers.report = {"tokens": 20_000, "seconds": 100.0, "tokens_per_second": 200.0}
        experiment = Experiment(id="experiment", name="quickstart 1")
        heads = Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base")
        heads.figures = {"mean_accepted_length": 2.5, "speedup": 1.5}
        rows.add_all([answers, experiment, heads])
        rows.flush()
        for number, state in enumerate(("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "INTERRUPTED")):
            values = {"kind": "train", "queue": "gpu", "state": state, "done": number, "total": 10, "unit": "steps"}
            times = {"started_at": now() - timedelta(seconds=90), "finished_at": now()}
            job = Job(id=state.lower(), name=f"{state} {HOSTILE}", **values, **times)
            job.created_at = now() + timedelta(seconds=number)
            rows.add(job)
    return home


def test_the_jobs_table_shows_every_state_in_words_and_markup_literally(filled):
    with reading(filled) as rows:
        html = jobs.table(rows, ListQuery("All"))
    for word in ("Waiting", "Running", "Done", "Failed", "Cancelled", "Interrupted"):
        assert f">{word}<" in html
    assert "<img" not in html
    assert "${" not in html


@pytest.mark.parametrize(("which", "count"), [("All", 6), ("Active", 3), ("Done", 1), ("Failed or cancelled", 2)])
def test_the_filter_keeps_the_jobs_it_names(filled, which, count):
    with reading(filled) as rows:
        assert jobs.table(rows, ListQuery(which)).count("data-pick=") == count


def test_an_empty_list_says_what_would_be_there(home):
    with reading(home) as rows:
        assert "No jobs yet" in jobs.table(rows, ListQuery("All"))
        assert "No matches" in jobs.table(rows, ListQuery("Done"))
        assert "No datasets yet" in data.table(rows, ListQuery("All"))
        assert "No model yet" in models.table(rows, ListQuery("All"))


def test_a_waiting_job_says_what_it_waits_for(filled):
    with reading(filled) as rows:
        assert "Waits for a worker of the gpu queue" in jobs.table(rows, ListQuery("Active"))


def test_progress_says_how_far_and_how_long():
    job = Job(
        kind="train", state="RUNNING", done=120, total=300, unit="steps", eta_seconds=95.0, progress_note="epoch 1"
    )
    assert job_view.progress_words(job) == "120 of 300 steps · 1 min 35 s left · epoch 1"
    job.eta_seconds = None
    assert "estimating the time left" in job_view.progress_words(job)
    assert job_view.counted(1_200_000, 93_000_000, "bytes") == "1.2 MB of 93.0 MB"


def test_what_follows_the_last_step_is_named():
    job = Job(kind="train", state="RUNNING", done=20, total=20, unit="steps", eta_seconds=0.0, progress_note="")
    assert job_progress(job) == "100% · finishing…"
    job.progress_note = "looking for the tree that is fastest here"
    assert job_progress(job) == "100% · looking for the tree that is fastest here"
    assert job_view.progress_words(job) == "20 of 20 steps · finishing… · looking for the tree that is fastest here"


def test_a_count_of_answers_does_not_fall_back_after_a_kill():
    """The row says how far the attempts before came; this one makes again what had not been kept."""
    job = Job(kind="generate_data", state="RUNNING", done=16, done_before=40, total=100, unit="rows", progress_note="")
    assert job_view.progress_words(job).startswith("40 of 100 rows") and 'value="40"' in job_view.progress(job)
    assert job_progress(job).startswith("40%")
    job.done = 56
    assert job_view.progress_words(job).startswith("56 of 100 rows")
    job.kind, job.done = "train", 16
    assert job_view.progress_words(job).startswith("16 of 100 rows"), "a training's steps are what its state says"


def test_a_failure_is_one_sentence_with_what_to_change():
    job = Job(kind="train", state="FAILED", error="The disk is full.", hint="Free some space.", cancel_requested=False)
    assert "The disk is full. Free some space." in job_view.banner(job)


def test_a_cancelled_job_says_why_it_was_cancelled():
    reason = "Not started, because “Import x” failed; retry that job and this one follows."
    assert reason in job_view.banner(Job(kind="train", state="CANCELLED", error=reason))
    assert "Stopped at your request" in job_view.banner(Job(kind="train", state="CANCELLED"))


def test_every_kind_of_prompt_file_that_can_be_read_can_be_uploaded():
    from app.views.import_form import TYPES

    assert {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".gz"} == set(TYPES)


@pytest.mark.parametrize(
    ("state", "complete", "said"), [("FAILED", True, 1), ("FAILED", False, 1), ("CANCELLED", False, 0)]
)
def test_a_set_that_was_not_extended_says_so_and_can_be_used(state, complete, said):
    job = Job(id="1" * 32, kind="generate_data", state=state, error="No endpoint.", hint="", cancel_requested=False)
    data = Dataset(name="a", kind="conversations", state="ready", rows=9, report={"complete": complete})
    html = data_view.state(data, job, "")
    assert html.count(data_view.AS_BEFORE) == html.count("No endpoint.") == html.count("/runs?id=") == said
    assert (data_view.CUT_SHORT in html) == (not complete)
    job.state = "SUCCEEDED"
    assert data_view.AS_BEFORE not in data_view.state(data, job, "")


def test_a_finished_training_leads_to_the_playground(filled):
    with writing(filled) as rows:
        rows.get(Checkpoint, "heads").job_id = "succeeded"
        rows.get(Base, "base").name = "tiny"
    with reading(filled) as rows:
        assert "/playground?model=tiny%40heads" in status_line(rows, rows.get(Job, "succeeded"))
        assert "/playground" not in status_line(rows, rows.get(Job, "failed"))


def test_log_lines_are_text(filled):
    from tracking import reports

    with writing(filled) as rows:
        reports.add_log(rows, "running", 1, HOSTILE, "warning")
    with reading(filled) as rows:
        html = job_rows.log_lines(reports.logs(rows, "running"))
    assert "<b>warning</b>" in html
    assert "<img" not in html


def test_a_sample_marks_tokens_by_their_recorded_origin():
    tokens = [{"text": "a", "origin": "draft"}, {"text": HOSTILE, "origin": "target"}, {"text": "c", "origin": "x y"}]
    html = job_rows.samples([(5, {"prompt": HOSTILE, "tokens": tokens, "mean_accepted_length": 2.0})])
    assert '<span class="tr-token sp-draft" data-depth="1">a</span>' in html
    assert '<span class="tr-token sp-plain">c</span>' in html
    assert "τ 2.00" in html
    assert "<img" not in html


def test_a_greedy_answer_is_shown_once_with_its_tau_at_every_step():
    """It is the base's own, so it is the same whatever the draft has learned."""
    plain, drafted = [{"text": "So.", "origin": "target"}], [{"text": "So.", "origin": "draft"}]
    records = [(0, plain, 1.0), (20, plain, 1.25), (40, drafted, 1.5)]
    html = job_rows.samples(
        (step, {"prompt": "Why?", "tokens": tokens, "mean_accepted_length": tau}) for step, tokens, tau in records
    )
    assert html.count("Why?") == 1 and '<span class="tr-token sp-draft" data-depth="1">So.</span>' in html
    assert "Step 0 · τ 1.00; Step 20 · τ 1.25; Step 40 · τ 1.50" in html
    other = job_rows.samples([(0, {"prompt": "Why?", "text": "So."}), (1, {"prompt": "Why?", "text": "But."})])
    assert "So." in other and "But." in other


def test_the_model_card_says_what_it_can_carry_and_why_not(filled):
    with reading(filled) as rows:
        base = rows.get(Base, "base")
    assert "134,515,008" in models.details(base)
    assert "600 MB in float32" in models.details(base)
    found = models.methods(base)
    assert found.count(">Compatible<") == 3
    assert "It has no &lt;b&gt;middle&lt;/b&gt;." in found
    assert models.line(base) == "LlamaForCausalLM · 135 M parameters · float32"


def test_rows_left_out_are_listed_by_line_and_reason(filled):
    with reading(filled) as rows:
        html = data_view.bad_rows(rows.get(Dataset, "prompts"))
        shown = data_view.details(rows.get(Dataset, "prompts"), {})
    assert ">7<" in html and data_view.line_ranges([1, 2, 3, 7, "?"]) == "1–3, 7, ?"
    assert "<img" not in html
    assert "1: 90, 2: 10" in shown


def test_the_data_filter_tells_prompts_from_conversations(filled):
    with reading(filled) as rows:
        assert data.table(rows, ListQuery("Prompts")).count("data-pick=") == 1
        assert 'data-pick="answers"' in data.table(rows, ListQuery("Conversations"))


def test_a_deletion_says_what_depends_on_the_thing(filled):
    assert "heads" in question(filled, Base, "model", "base")
    assert "Nothing depends on it" in question(filled, Job, "job", "failed").replace("this job", "it")
    assert delete(filled, Base, "model", "base").startswith("Deleted")
    with pytest.raises(NotFound, match="This model does not exist"):
        question(filled, Base, "model", "base")
    with reading(filled) as rows:
        assert rows.get(Checkpoint, "heads") is None


def test_an_active_job_is_not_deleted(filled):
    with pytest.raises(Conflict, match="cancel it first"):
        delete(filled, Job, "job", "running")


def test_saving_renames_and_notes_and_refuses_a_taken_name(filled):
    assert save(filled, Dataset, "answers", " better ", " a note ") == "Saved."
    with reading(filled) as rows:
        assert (rows.get(Dataset, "answers").name, rows.get(Dataset, "answers").note) == ("better", "a note")
    with pytest.raises(Conflict, match="already"):
        save(filled, Dataset, "answers", f"p {HOSTILE}", "")
    with pytest.raises(BadInput, match="cannot be empty"):
        save(filled, Dataset, "answers", " ", "")


def test_a_job_whose_name_was_made_up_can_be_noted(filled):
    with writing(filled) as rows:
        rows.get(Job, "failed").name = "Evaluate tiny@heads"
    assert save(filled, Job, "failed", "Evaluate tiny@heads", "why?") == "Saved."
    with reading(filled) as rows:
        assert (rows.get(Job, "failed").name, rows.get(Job, "failed").note) == ("Evaluate tiny@heads", "why?")


def test_cloning_a_training_opens_its_form(filled):
    assert clone(filled, "succeeded") == ("", "/runs/new?clone=succeeded")


def test_endpoints_and_bases_can_answer(filled):
    (filled.home / "settings.toml").write_text('[endpoints.mine]\nurl = "http://127.0.0.1:1/v1"\n')
    with reading(filled) as rows:
        found = response_models(rows, filled)
    assert [value for _, value in found] == ["endpoint:mine", "base"], "a server is faster"
    assert valid_choice(found, "base") == "base"
    assert valid_choice(found, "gone") == "endpoint:mine"
    assert valid_choice([]) is None


def test_what_was_deleted_meanwhile_is_said_in_a_sentence(filled):
    with reading(filled) as rows:
        for request in (GenerateData("gone", base_id="base"), GenerateData("prompts", base_id="gone")):
            with pytest.raises(NotFound, match="was deleted; choose another"):
                estimate(rows, request, filled.home)


def test_what_does_not_fit_is_said_before_the_start(filled):
    with reading(filled) as rows:
        found = estimate(rows, GenerateData("prompts", base_id="base", batch_size=4096), filled.home)
    small = replace(found, free_disk=1.0, free_memory=1.0)
    assert len(small.warnings) == 2


def test_a_larger_draft_takes_more_of_everything(filled):
    with reading(filled) as rows:
        tied, own = (
            estimate(rows, Train("medusa", "base", "answers", {"medusa_tie_lm_head": tied}), filled.home)
            for tied in (True, False)
        )
    assert own.disk > tied.disk
    assert own.memory > tied.memory
    assert own.seconds > tied.seconds
    assert own.disk > 4 * 4 * 576 * 49_152


def test_a_base_that_runs_elsewhere_costs_no_memory_here_and_what_is_kept_costs_disk(filled):
    kinds = ({}, {"hidden_states": "big"}, {"hidden_states": "big", "hidden_states_store": "kept"})
    settings = [{"medusa_tie_lm_head": True, **kind} for kind in kinds]
    with reading(filled) as rows:
        requests = (Train(method="medusa", base_id="base", dataset_id="answers", settings=each) for each in settings)
        here, away, kept = (estimate(rows, request, filled.home) for request in requests)
    assert here.memory > away.memory == kept.memory and here.seconds > away.seconds
    assert kept.disk > away.disk == here.disk


def test_data_that_is_still_made_is_counted_by_its_prompts(filled):
    with writing(filled) as rows:
        answers = rows.get(Dataset, "answers")
        answers.rows, answers.report, answers.source_id, answers.config = 0, {}, "prompts", {"limit": 30}
    with reading(filled) as rows:
        assert sizes.expected_rows(rows, rows.get(Dataset, "answers")) == 30
        assert estimate(rows, Train(method="medusa", base_id="base", dataset_id="answers"), filled.home).seconds > 10
    with writing(filled) as rows:
        rows.get(Dataset, "answers").source_id = None
    with reading(filled) as rows:
        assert estimate(rows, Train(method="medusa", base_id="base", dataset_id="answers"), filled.home).seconds is None


@pytest.mark.parametrize(("epochs", "steps", "tokens"), [(2, 0, 2000), (2, 3, 300), (9, 30, 3000), (0, 7, 700)])
def test_the_step_limit_bounds_what_is_trained(epochs, steps, tokens):
    from models.methods import train_config

    config = train_config(epochs=epochs, max_steps=steps, batch_tokens=50, accumulate=2)
    assert sizes.trained_tokens(config, 1000) == tokens


def test_a_method_the_base_cannot_carry_is_refused_with_the_reason(filled):
    with reading(filled) as rows:
        Train(method="medusa", base_id="base", dataset_id="answers").check(rows)
        with pytest.raises(Unsupported, match="no <b>middle"):
            Train(method="eagle3", base_id="base", dataset_id="answers").check(rows)


def test_answers_of_another_model_are_warned_of(filled):
    with writing(filled) as rows:
        rows.add(Base(id="other", name="other", source="folder", location="/y", state="ready", card=CARD))
    with reading(filled) as rows:
        assert "generated by" in train.warnings(rows, Train(method="medusa", base_id="other", dataset_id="answers"))[0]
        assert train.warnings(rows, Train(method="medusa", base_id="base", dataset_id="answers")) == []


def test_a_draft_that_no_server_reads_is_warned_of_before_it_is_trained(filled, tmp_path):
    from tests.tiny import make_tiny_base

    with writing(filled) as rows:
        phi = make_tiny_base(tmp_path / "phi", "phi")
        rows.add(Base(id="phi", name="phi", source="folder", location="/y", path=str(phi), state="ready", card=CARD))
        rows.get_one(Dataset, "answers").base_id = "phi"
    with reading(filled) as rows:
        assert "in Speculoos only" in " ".join(train.warnings(rows, Train("medusa", "phi", "answers")))
        assert train.warnings(rows, Train(method="draft", base_id="phi", dataset_id="answers")) == []


def test_the_train_page_is_filled_in_from_the_address(filled):
    with writing(filled) as rows:
        wish = {
            "method": "eagle",
            "base_id": "base",
            "dataset_id": "answers",
            "settings": {"lr": 0.5},
            "recipe": "gone",
        }
        rows.get(Job, "succeeded").request = {**wish, "checkpoint_id": "heads"}
    with reading(filled) as rows:
        assert train.request_of_address(rows, {"data": "answers"}).base_id == "base"
        assert train.request_of_address(rows, {"method": "nonsense"}).method == "eagle3"
        cloned = train.request_of_job(rows, "succeeded")
        assert (cloned.method, cloned.settings, cloned.recipe, cloned.checkpoint_id) == ("eagle", {"lr": 0.5}, "", "")
        assert train.request_of_job(rows, "gone") is None


def test_a_guided_run_shows_its_steps_and_then_the_draft(filled):
    with writing(filled) as rows:
        rows.get(Base, "base").name = "tiny"
        rows.get(Experiment, "experiment").name = f"{EXPERIMENT}tiny"
        for name in ("succeeded", "running"):
            rows.get(Job, name).experiment_id = "experiment"
        rows.get(Job, "succeeded").kind = "train"
        rows.get(Checkpoint, "heads").job_id = "succeeded"
    with reading(filled) as rows:
        experiment = guided_view.latest(rows)
        html = guided_view.run_view(rows, experiment)
        assert experiment.id == "experiment" and 'data-state="active"' in html and "Running on the server" in html
        assert home_page.address(rows, rows.get(Job, "running")) == "/runs/guided?experiment=experiment"
    with writing(filled) as rows:
        rows.get(Job, "running").state = "SUCCEEDED"
    with reading(filled) as rows:
        html = guided_view.run_view(rows, rows.get(Experiment, "experiment"))
        assert 'data-state="ended"' in html and "Running on the server" not in html
        assert "/playground?model=tiny%40heads" in html and "/models/drafts?id=heads" in html
        assert "2.50" in html
        assert "2.50" in home_page.result(rows) and 'data-sp="race"' not in home_page.draw(rows, "")[0]


def test_a_broken_guided_run_says_where_it_broke_and_shows_what_was_trained(filled):
    with writing(filled) as rows:
        rows.get(Job, "failed").experiment_id = rows.get(Job, "succeeded").experiment_id = "experiment"
        rows.get(Job, "succeeded").kind = "train"
        rows.get(Checkpoint, "heads").job_id = "succeeded"
    with reading(filled) as rows:
        html = guided_view.run_view(rows, rows.get(Experiment, "experiment"))
        assert "Chat with the draft" in html and "/runs?id=failed" in html


def test_a_newcomer_sees_the_race_and_two_buttons(home):
    with reading(home) as rows:
        html, _button = home_page.draw(rows, "")
        assert guided_view.latest(rows) is None and home_page.running(rows) == ""
        assert html.count('class="sp-button') == 2 and 'data-sp="race"' in html


@pytest.mark.parametrize("name", ["quickstart-prompts", "built-in-questions"])
def test_a_built_in_set_is_added_by_a_job_and_once(home, name):
    with gr.Blocks():
        sets = BuiltInSets(home)
    box, *words = sets.opened()
    assert box.open and "Added" not in "".join(words)
    said, target = sets.add(name)
    assert said == ""
    with reading(home) as rows:
        assert rows.get(Dataset, target.partition("id=")[2]).name == name
    box, *words = sets.opened()
    assert "Added" in words[[*BUILT_IN].index(name)] and target in "".join(words)
    again, nowhere = sets.add(name)
    assert "was added before" in again and target in again and nowhere == ""
    with reading(home) as rows:
        assert rows.scalar(select(func.count()).select_from(Job)) == 1


def test_a_built_in_set_is_known_after_renaming_and_added_anew_after_failing(home):
    first, _ = add_built_in(builtin.PROMPTS, settings=home)
    with writing(home) as rows:
        rows.get(Dataset, first).name = "mine"
        rows.add(Dataset(name=builtin.QUESTIONS, kind="conversations", state="ready"))
    assert add_built_in(builtin.PROMPTS, settings=home) == (first, None)
    with writing(home) as rows:
        rows.get(Dataset, first).state = "failed"
    again, job = add_built_in(builtin.PROMPTS, settings=home)
    assert job and again != first
    questions, _ = add_built_in(builtin.QUESTIONS, settings=home)
    with reading(home) as rows:
        assert rows.get(Dataset, questions).name == f"{builtin.QUESTIONS}-2", "another set has that name"


def test_a_set_of_an_earlier_version_is_known_by_its_file(home):
    with writing(home) as rows:
        old = Dataset(name="quickstart-prompts", kind="prompts", state="ready")
        old.config = {"path": "/elsewhere/corpus/quickstart_prompts.jsonl", "original_name": "quickstart-prompts.jsonl"}
        rows.add(old)
    assert add_built_in(builtin.PROMPTS, settings=home) == (old.id, None)
    with pytest.raises(BadInput, match="no built-in set 'x'; the sets are quickstart-prompts and built-in-questions"):
        add_built_in("x", settings=home)


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ({"length": 138, "stop": 62}, "138 of 200 responses (69%) were truncated at 256 tokens"),
        ({"length": 20, "stop": 180}, ""),
        ({}, ""),
    ],
)
def test_many_cut_answers_are_a_warning_that_names_the_fix(finish, words):
    data = Dataset(name="d", kind="conversations", state="ready", rows=200)
    data.report, data.config = {"finish": finish, "complete": True}, {"max_tokens": 256}
    html = data_view.state(data, None, "")
    assert (words in html and "Raise “Max tokens per response”" in html) if words else html == ""


def test_settings_tell_that_a_secret_is_set_and_never_what_it_is(home, monkeypatch):
    monkeypatch.setenv("MINE_KEY", "sesame-key")
    known = replace(
        home,
        hf_token="hf_sesame",
        password="sesame-password",
        inference_token="sesame-token",
        database_url="postgresql://me:sesame-db@db/x",
    )
    table = '{}.mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "MINE_KEY"\n'
    (home.home / "settings.toml").write_text(table.format("[endpoints") + table.format("[hidden_states"))
    html = settings.limits(known) + servers_view(known)[0] + settings.storage_facts(known)
    assert "sesame" not in html
    assert html.count("MINE_KEY is set") == 2
    changed, _, defaults = html.partition("<details")
    assert "Password of the pages" in changed and "Token for metrics" in defaults, "what differs comes first"
    assert "HF_TOKEN_FILE=" in html and "SPECULOOS_MAX_UPLOAD_MB=200" in html, "the lines that would change them"


def test_what_is_not_well_comes_first_with_what_to_do():
    html = settings.health_html({"web": HealthPart(True, "fine"), "broker": HealthPart(False, HOSTILE, "Start it.")})
    assert html.index("broker") < html.index("fine")
    assert "Start it." in html
    assert "<img" not in html


def test_a_job_that_is_gone_is_said_so_on_its_page(home):
    with reading(home) as rows, pytest.raises(NotFound):
        rows_of_jobs.get(rows, "gone")
