"""What the pages show, from database rows, without a browser or services."""

from dataclasses import replace
from datetime import timedelta

import gradio as gr
import pytest
from sqlalchemy import func, select
from starlette.datastructures import QueryParams

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
from models.methods.recipes import read_recipe
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
    with writing(home) as session:
        base = Base(id="base", name=HOSTILE, source="folder", location="/x", path="/x", state="ready", card=CARD)
        prompts = Dataset(id="prompts", name=f"p {HOSTILE}", kind="prompts", state="ready", rows=100, bad_rows=1)
        prompts.report = {"bad": [{"line": 7, "reason": HOSTILE}], "turns": {"1": 90, "2": 10}}
        session.add_all([base, prompts])
        session.flush()
        answers = Dataset(id="answers", name="answers", kind="conversations", state="ready", rows=100, base_id="base")
        answers.report = {"tokens": 20_000, "seconds": 100.0, "tokens_per_second": 200.0}
        experiment = Experiment(id="experiment", name="quickstart 1")
        heads = Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base")
        heads.figures = {"mean_accepted_length": 2.5, "speedup": 1.5}
        session.add_all([answers, experiment, heads])
        session.flush()
        for number, state in enumerate(("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "INTERRUPTED")):
            values = {"kind": "train", "queue": "gpu", "state": state, "done": number, "total": 10, "unit": "steps"}
            times = {"started_at": now() - timedelta(seconds=90), "finished_at": now()}
            job = Job(id=state.lower(), name=f"{state} {HOSTILE}", **values, **times)
            job.created_at = now() + timedelta(seconds=number)
            session.add(job)
    return home


def test_the_jobs_table_shows_every_state_in_words_and_markup_literally(filled):
    with reading(filled) as session:
        html = jobs.table(session, ListQuery("All"))
    for label in ("Waiting", "Running", "Done", "Failed", "Cancelled", "Interrupted"):
        assert f">{label}<" in html
    assert "<img" not in html
    assert "${" not in html


@pytest.mark.parametrize(("filter_name", "count"), [("All", 6), ("Active", 3), ("Done", 1), ("Failed or cancelled", 2)])
def test_the_filter_keeps_the_jobs_it_names(filled, filter_name, count):
    with reading(filled) as session:
        assert jobs.table(session, ListQuery(filter_name)).count("data-pick=") == count


def test_an_empty_list_says_what_would_be_there(home):
    with reading(home) as session:
        assert "No jobs yet" in jobs.table(session, ListQuery("All"))
        assert "No matches" in jobs.table(session, ListQuery("Done"))
        assert "No datasets yet" in data.table(session, ListQuery("All"))
        assert "No model yet" in models.table(session, ListQuery("All"))


def test_a_waiting_job_says_what_it_waits_for(filled):
    with reading(filled) as session:
        assert "Waits for a worker of the gpu queue" in jobs.table(session, ListQuery("Active"))


def test_progress_says_how_far_and_how_long():
    job = Job(
        kind="train", state="RUNNING", done=120, total=300, unit="steps", eta_seconds=95.0, progress_note="epoch 1"
    )
    assert job_view.progress_text(job) == "120 of 300 steps · 1 min 35 s left · epoch 1"
    job.eta_seconds = None
    assert "estimating the time left" in job_view.progress_text(job)
    assert job_view.counted(1_200_000, 93_000_000, "bytes") == "1.2 MB of 93.0 MB"


def test_the_work_after_the_last_step_is_named():
    job = Job(kind="train", state="RUNNING", done=20, total=20, unit="steps", eta_seconds=0.0, progress_note="")
    assert job_progress(job) == "100% · finishing…"
    job.progress_note = "looking for the tree that is fastest here"
    assert job_progress(job) == "100% · looking for the tree that is fastest here"
    assert job_view.progress_text(job) == "20 of 20 steps · finishing… · looking for the tree that is fastest here"


def test_a_count_of_answers_does_not_fall_back_after_a_kill():
    """`done_before` is the progress of earlier attempts; this attempt repeats the rows that were not stored."""
    job = Job(kind="generate_data", state="RUNNING", done=16, done_before=40, total=100, unit="rows", progress_note="")
    assert job_view.progress_text(job).startswith("40 of 100 rows") and 'value="40"' in job_view.progress(job)
    assert job_progress(job).startswith("40%")
    job.done = 56
    assert job_view.progress_text(job).startswith("56 of 100 rows")
    job.kind, job.done = "train", 16
    assert job_view.progress_text(job).startswith("16 of 100 rows"), "a training's steps are what its state says"


def test_a_failure_is_one_sentence_with_what_to_change():
    job = Job(kind="train", state="FAILED", error="The disk is full.", hint="Free some space.", cancel_requested=False)
    assert "The disk is full. Free some space." in job_view.banner(job)


def test_a_cancelled_job_says_why_it_was_cancelled():
    reason = "Not started, because “Import x” failed; retry that job and this one follows."
    assert reason in job_view.banner(Job(kind="train", state="CANCELLED", error=reason))
    assert "Stopped at your request" in job_view.banner(Job(kind="train", state="CANCELLED"))


@pytest.mark.parametrize(
    ("state", "complete", "count"), [("FAILED", True, 1), ("FAILED", False, 1), ("CANCELLED", False, 0)]
)
def test_a_set_that_was_not_extended_says_so_and_can_be_used(state, complete, count):
    job = Job(id="1" * 32, kind="generate_data", state=state, error="No endpoint.", hint="", cancel_requested=False)
    data = Dataset(name="a", kind="conversations", state="ready", rows=9, report={"complete": complete})
    html = data_view.state(data, job, "")
    assert html.count(data_view.AS_BEFORE) == html.count("No endpoint.") == html.count("/runs?id=") == count
    assert (data_view.CUT_SHORT in html) == (not complete)
    job.state = "SUCCEEDED"
    assert data_view.AS_BEFORE not in data_view.state(data, job, "")


def test_a_finished_training_leads_to_the_playground(filled):
    with writing(filled) as session:
        session.get(Checkpoint, "heads").job_id = "succeeded"
        session.get(Base, "base").name = "tiny"
    with reading(filled) as session:
        assert "/playground?model=tiny%40heads" in status_line(session, session.get(Job, "succeeded"))
        assert "/playground" not in status_line(session, session.get(Job, "failed"))


def test_log_lines_are_text(filled):
    from tracking import reports

    with writing(filled) as session:
        reports.add_log(session, "running", 1, HOSTILE, "warning")
    with reading(filled) as session:
        html = job_rows.log_lines(reports.logs(session, "running"))
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
    """A greedy answer is the base model's own, whatever the draft has learned."""
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
    with reading(filled) as session:
        base = session.get(Base, "base")
    assert "134,515,008" in models.details(base)
    assert "600 MB in float32" in models.details(base)
    html = models.methods(base)
    assert html.count(">Compatible<") == 3
    assert "It has no &lt;b&gt;middle&lt;/b&gt;." in html
    assert models.line(base) == "LlamaForCausalLM · 135 M parameters · float32"


def test_rows_left_out_are_listed_by_line_and_reason(filled):
    with reading(filled) as session:
        html = data_view.bad_rows(session.get(Dataset, "prompts"))
        details = data_view.details(session.get(Dataset, "prompts"), {})
    assert ">7<" in html and data_view.line_ranges([1, 2, 3, 7, "?"]) == "1–3, 7, ?"
    assert "<img" not in html
    assert "1: 90, 2: 10" in details


def test_the_data_filter_tells_prompts_from_conversations(filled):
    with reading(filled) as session:
        assert data.table(session, ListQuery("Prompts")).count("data-pick=") == 1
        assert 'data-pick="answers"' in data.table(session, ListQuery("Conversations"))


def test_a_deletion_says_what_depends_on_the_thing(filled):
    assert "heads" in question(filled, Base, "model", "base")
    assert "Nothing depends on it" in question(filled, Job, "job", "failed").replace("this job", "it")
    assert delete(filled, Base, "model", "base").startswith("Deleted")
    with pytest.raises(NotFound, match="This model does not exist"):
        question(filled, Base, "model", "base")
    with reading(filled) as session:
        assert session.get(Checkpoint, "heads") is None


def test_an_active_job_is_not_deleted(filled):
    with pytest.raises(Conflict, match="cancel it first"):
        delete(filled, Job, "job", "running")


def test_saving_renames_and_notes_and_refuses_a_taken_name(filled):
    assert save(filled, Dataset, "dataset", "answers", " better ", " a note ") == "Saved."
    with reading(filled) as session:
        assert (session.get(Dataset, "answers").name, session.get(Dataset, "answers").note) == ("better", "a note")
    with pytest.raises(Conflict, match="already"):
        save(filled, Dataset, "dataset", "answers", f"p {HOSTILE}", "")
    with pytest.raises(BadInput, match="cannot be empty"):
        save(filled, Dataset, "dataset", "answers", " ", "")


def test_a_job_with_a_generated_name_can_get_a_note(filled):
    with writing(filled) as session:
        session.get(Job, "failed").name = "Evaluate tiny@heads"
    assert save(filled, Job, "job", "failed", "Evaluate tiny@heads", "why?") == "Saved."
    with reading(filled) as session:
        assert (session.get(Job, "failed").name, session.get(Job, "failed").note) == ("Evaluate tiny@heads", "why?")


def test_cloning_a_training_opens_its_form(filled):
    assert clone(filled, "succeeded") == ("", "/runs/new?clone=succeeded")


def test_endpoints_and_bases_can_answer(filled):
    (filled.home / "settings.toml").write_text('[endpoints.mine]\nurl = "http://127.0.0.1:1/v1"\n')
    with reading(filled) as session:
        choices = response_models(session, filled)
    assert [value for _, value in choices] == ["endpoint:mine", "base"], "a server is faster"
    assert valid_choice(choices, "base") == "base"
    assert valid_choice(choices, "gone") == "endpoint:mine"
    assert valid_choice([]) is None


def test_a_request_for_deleted_rows_is_refused(filled):
    with reading(filled) as session:
        for request in (GenerateData("gone", base_id="base"), GenerateData("prompts", base_id="gone")):
            with pytest.raises(NotFound, match="was deleted; choose another"):
                estimate(session, request, filled.home)


def test_a_job_that_does_not_fit_gives_warnings(filled):
    with reading(filled) as session:
        estimated = estimate(session, GenerateData("prompts", base_id="base", batch_size=4096), filled.home)
    small = replace(estimated, free_disk=1.0, free_memory=1.0)
    assert len(small.warnings) == 2


def test_a_larger_draft_takes_more_of_everything(filled):
    with reading(filled) as session:
        tied, untied = (
            estimate(session, Train("medusa", "base", "answers", {"medusa_tie_lm_head": tied}), filled.home)
            for tied in (True, False)
        )
    assert untied.disk > tied.disk
    assert untied.memory > tied.memory
    assert untied.seconds > tied.seconds
    assert untied.disk > 4 * 4 * 576 * 49_152


def test_a_remote_base_costs_no_memory_here_and_stored_states_cost_disk(filled):
    kinds = ({}, {"hidden_states": "big"}, {"hidden_states": "big", "hidden_states_store": "kept"})
    settings = [{"medusa_tie_lm_head": True, **kind} for kind in kinds]
    with reading(filled) as session:
        requests = (
            Train(method="medusa", base_id="base", dataset_id="answers", settings=options) for options in settings
        )
        local, remote, stored = (estimate(session, request, filled.home) for request in requests)
    assert local.memory > remote.memory == stored.memory and local.seconds > remote.seconds
    assert stored.disk > remote.disk == local.disk


def test_data_that_is_still_made_is_counted_by_its_prompts(filled):
    with writing(filled) as session:
        answers = session.get(Dataset, "answers")
        answers.rows, answers.report, answers.source_id, answers.config = 0, {}, "prompts", {"limit": 30}
    with reading(filled) as session:
        assert sizes.expected_rows(session, session.get(Dataset, "answers")) == 30
        assert estimate(session, Train(method="medusa", base_id="base", dataset_id="answers"), filled.home).seconds > 10
    with writing(filled) as session:
        session.get(Dataset, "answers").source_id = None
    with reading(filled) as session:
        assert (
            estimate(session, Train(method="medusa", base_id="base", dataset_id="answers"), filled.home).seconds is None
        )


@pytest.mark.parametrize(("epochs", "steps", "tokens"), [(2, 0, 2000), (2, 3, 300), (9, 30, 3000), (0, 7, 700)])
def test_the_step_limit_bounds_what_is_trained(epochs, steps, tokens):
    from models.methods import train_config

    config = train_config(epochs=epochs, max_steps=steps, batch_tokens=50, accumulate=2)
    assert sizes.trained_tokens(config, 1000) == tokens


def test_a_method_the_base_cannot_carry_is_refused_with_the_reason(filled):
    with reading(filled) as session:
        Train(method="medusa", base_id="base", dataset_id="answers").check(session)
        with pytest.raises(Unsupported, match="no <b>middle"):
            Train(method="eagle3", base_id="base", dataset_id="answers").check(session)


def test_answers_of_another_model_are_warned_of(filled):
    with writing(filled) as session:
        session.add(Base(id="other", name="other", source="folder", location="/y", state="ready", card=CARD))
    with reading(filled) as session:
        assert (
            "generated by" in train.warnings(session, Train(method="medusa", base_id="other", dataset_id="answers"))[0]
        )
        assert train.warnings(session, Train(method="medusa", base_id="base", dataset_id="answers")) == []


def test_the_train_page_takes_the_newest_responses_of_its_base_model(filled):
    newer = {"kind": "conversations", "state": "ready", "rows": 5, "created_at": now() + timedelta(hours=1)}
    with writing(filled) as session:
        session.add(Base(id="other", name="other", source="folder", location="", state="ready"))
        session.flush()
        session.add(Dataset(id="of-another", name="of another", base_id="other", path="/z", **newer))
    with reading(filled) as session:
        assert train.newest_data_of(session, "base") == ["answers"]
        assert train.newest_data_of(session, "other") == ["of-another"]
        assert train.newest_data_of(session, None) == []


def test_a_draft_that_no_server_reads_is_warned_of_before_it_is_trained(filled, tmp_path):
    from tests.tiny import make_tiny_base

    with writing(filled) as session:
        phi = make_tiny_base(tmp_path / "phi", "phi")
        session.add(Base(id="phi", name="phi", source="folder", location="/y", path=str(phi), state="ready", card=CARD))
        session.get_one(Dataset, "answers").base_id = "phi"
    with reading(filled) as session:
        assert "in Speculoos only" in " ".join(train.warnings(session, Train("medusa", "phi", "answers")))
        assert train.warnings(session, Train(method="draft", base_id="phi", dataset_id="answers")) == []


def test_the_train_page_is_filled_in_from_the_address(filled):
    with writing(filled) as session:
        request = {
            "method": "eagle",
            "base_id": "base",
            "dataset_id": "answers",
            "settings": {"lr": 0.5},
            "recipe": "gone",
        }
        session.get(Job, "succeeded").request = {**request, "checkpoint_id": "heads"}
    with reading(filled) as session:
        assert train.request_of_address(session, {"data": "answers"}).base_id == "base"
        assert train.request_of_address(session, {"method": "nonsense"}).method == "eagle3"
        cloned = train.request_of_job(session, "succeeded")
        assert (cloned.method, cloned.settings, cloned.recipe, cloned.checkpoint_id) == ("eagle", {"lr": 0.5}, "", "")
        assert train.request_of_job(session, "gone") is None


@pytest.mark.parametrize(
    "address", ["clone=succeeded", "clone=succeeded&longer=2", "clone=succeeded&method=medusa&longer=2"]
)
def test_a_cloned_training_keeps_its_base_and_data_with_another_method(filled, address):
    with writing(filled) as session:
        early = now() - timedelta(days=1)
        session.add(
            Base(id="early", name="a", source="folder", location="/y", state="ready", card=CARD, created_at=early)
        )
        request = {"method": "eagle", "base_id": "base", "dataset_id": "answers", "settings": {"max_steps": 5}}
        session.get(Job, "succeeded").request = {**request, "processes": 2, "checkpoint_id": "heads"}
    with gr.Blocks():
        form = train.TrainPage(filled)
    values = dict(zip(form.fields, form.open_address(gr.Request(query_params=QueryParams(address))), strict=False))
    assert (values["base"].value, values["data"].value, values["processes"]) == ("base", ["answers"], 2)
    other_method = "medusa" in address
    assert values["method"] == ("medusa" if other_method else "eagle")
    assert values["max_steps"] == (0 if other_method else 10 if "longer" in address else 5)
    assert not other_method or values["epochs"] == read_recipe("medusa-standard").config({}).epochs


def test_a_guided_run_shows_its_steps_and_then_the_draft(filled):
    with writing(filled) as session:
        session.get(Base, "base").name = "tiny"
        session.get(Experiment, "experiment").name = f"{EXPERIMENT}tiny"
        for name in ("succeeded", "running"):
            session.get(Job, name).experiment_id = "experiment"
        session.get(Job, "succeeded").kind = "train"
        session.get(Checkpoint, "heads").job_id = "succeeded"
    with reading(filled) as session:
        experiment = guided_view.latest(session)
        html = guided_view.run_view(session, experiment)
        assert experiment.id == "experiment" and 'data-state="active"' in html and "Running on the server" in html
        assert home_page.address(session, session.get(Job, "running")) == "/runs/guided?experiment=experiment"
    with writing(filled) as session:
        session.get(Job, "running").state = "SUCCEEDED"
    with reading(filled) as session:
        html = guided_view.run_view(session, session.get(Experiment, "experiment"))
        assert 'data-state="ended"' in html and "Running on the server" not in html
        assert 'href="/playground/compare?models=tiny&amp;models=tiny%40heads"' in html
        assert "/playground?model=tiny%40heads" in html and "/models/drafts?id=heads" in html
        assert "2.50" in html
        assert "2.50" in home_page.result(session) and 'data-sp="race"' not in home_page.draw(session, "")[0]


def test_a_broken_guided_run_says_where_it_broke_and_shows_what_was_trained(filled):
    with writing(filled) as session:
        session.get(Job, "failed").experiment_id = session.get(Job, "succeeded").experiment_id = "experiment"
        session.get(Job, "succeeded").kind = "train"
        session.get(Checkpoint, "heads").job_id = "succeeded"
    with reading(filled) as session:
        html = guided_view.run_view(session, session.get(Experiment, "experiment"))
        assert "Chat with the draft" in html and "/runs?id=failed" in html


def test_a_newcomer_sees_the_race_and_two_buttons(home):
    with reading(home) as session:
        html, _button = home_page.draw(session, "")
        assert guided_view.latest(session) is None and home_page.running(session) == ""
        assert html.count('class="sp-button') == 2 and 'data-sp="race"' in html


@pytest.mark.parametrize("name", ["quickstart-prompts", "built-in-questions"])
def test_a_built_in_set_is_added_by_a_job_and_once(home, name):
    with gr.Blocks():
        sets = BuiltInSets(home)
    accordion, *texts = sets.opened()
    assert accordion.open and "Added" not in "".join(texts)
    message, target = sets.add(name)
    assert message == ""
    with reading(home) as session:
        assert session.get(Dataset, target.partition("id=")[2]).name == name
    accordion, *texts = sets.opened()
    assert "Added" in texts[[*BUILT_IN].index(name)] and target in "".join(texts)
    second_message, second_target = sets.add(name)
    assert "was added before" in second_message and target in second_message and second_target == ""
    with reading(home) as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


def test_a_built_in_set_is_known_after_renaming_and_added_anew_after_failing(home):
    first, _ = add_built_in(builtin.PROMPTS, settings=home)
    with writing(home) as session:
        session.get(Dataset, first).name = "mine"
        session.add(Dataset(name=builtin.QUESTIONS, kind="conversations", state="ready"))
    assert add_built_in(builtin.PROMPTS, settings=home) == (first, None)
    with writing(home) as session:
        session.get(Dataset, first).state = "failed"
    again, job = add_built_in(builtin.PROMPTS, settings=home)
    assert job and again != first
    questions, _ = add_built_in(builtin.QUESTIONS, settings=home)
    with reading(home) as session:
        assert session.get(Dataset, questions).name == f"{builtin.QUESTIONS}-2", "another set has that name"


def test_a_set_of_an_earlier_version_is_known_by_its_file(home):
    with writing(home) as session:
        old = Dataset(name="quickstart-prompts", kind="prompts", state="ready")
        old.config = {"path": "/elsewhere/corpus/quickstart_prompts.jsonl", "original_name": "quickstart-prompts.jsonl"}
        session.add(old)
    assert add_built_in(builtin.PROMPTS, settings=home) == (old.id, None)
    with pytest.raises(BadInput, match="no built-in set 'x'; the sets are quickstart-prompts and built-in-questions"):
        add_built_in("x", settings=home)


@pytest.mark.parametrize(
    ("finish", "text"),
    [
        ({"length": 138, "stop": 62}, "138 of 200 responses (69%) were truncated at 256 tokens"),
        ({"length": 20, "stop": 180}, ""),
        ({}, ""),
    ],
)
def test_many_cut_answers_are_a_warning_that_names_the_fix(finish, text):
    data = Dataset(name="d", kind="conversations", state="ready", rows=200)
    data.report, data.config = {"finish": finish, "complete": True}, {"max_tokens": 256}
    html = data_view.state(data, None, "")
    assert (text in html and "Raise “Max tokens per response”" in html) if text else html == ""


def test_settings_tell_that_a_secret_is_set_and_never_what_it_is(home, monkeypatch):
    monkeypatch.setenv("MINE_KEY", "sesame-key")
    configured = replace(
        home,
        hf_token="hf_sesame",
        password="sesame-password",
        inference_token="sesame-token",
        database_url="postgresql://me:sesame-db@db/x",
    )
    table = '{}.mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "MINE_KEY"\n'
    (home.home / "settings.toml").write_text(table.format("[endpoints") + table.format("[hidden_states"))
    html = settings.limits(configured) + servers_view(configured)[0] + settings.storage_facts(configured)
    assert "sesame" not in html
    assert html.count("MINE_KEY is set") == 2
    changed, _, defaults = html.partition("<details")
    assert "Password of the pages" in changed and "Token for metrics" in defaults, "what differs comes first"
    assert "HF_TOKEN_FILE=" in html and "SPECULOOS_MAX_UPLOAD_MB=200" in html, "the lines that would change them"


def test_unhealthy_parts_come_first_with_what_to_do():
    html = settings.health_html({"web": HealthPart(True, "fine"), "broker": HealthPart(False, HOSTILE, "Start it.")})
    assert html.index("broker") < html.index("fine")
    assert "Start it." in html
    assert "<img" not in html


def test_a_deleted_job_is_not_found(home):
    with reading(home) as session, pytest.raises(NotFound):
        rows_of_jobs.get(session, "gone")
