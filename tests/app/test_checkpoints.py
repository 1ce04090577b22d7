"""Checkpoints on their page, in the pickers and as downloads."""

import hashlib
import io
import os
import re
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import gradio as gr
import pytest
from fastapi.testclient import TestClient

from app import turns
from app.downloads import routes
from app.drafting import LOOKUP
from app.events import answer_error
from app.pages import compare, models, playground
from app.pages.checkpoints import CheckpointPanel
from app.pages.playground import opening
from app.views import checkpoint_rows, targets
from app.widgets.elements import hidden
from models.starter import STARTER_HEAD
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job

NASTY = "<img src=x onerror=alert(1)>${alert(1)}"


@pytest.fixture
def base_id(home: Settings) -> str:
    return add(home, Base(name="tiny", source="folder", location="/x", state="ready", weights_sha256="a" * 64))


def add(home: Settings, row: object) -> str:
    with writing(home) as session:
        session.add(row)
        session.flush()
        return row.id  # type: ignore[attr-defined]


def add_checkpoint(home: Settings, base_id: str, name: str = "heads", **values: object) -> str:
    columns = {"method": "medusa", "state": "ready", "base_sha256": "a" * 64} | values
    return add(home, Checkpoint(name=name, base_id=base_id, **columns))


def write_files(folder: Path) -> Path:
    folder.mkdir(parents=True)
    files = {"model.safetensors": os.urandom(3_000_000), "config.json": b"{}\n", "README.md": b"# heads\n"}
    sums = ""
    for name, data in files.items():
        (folder / name).write_bytes(data)
        sums += f"{hashlib.sha256(data).hexdigest()}  {name}\n"
    (folder / "SHA256SUMS").write_text(sums)
    return folder


@pytest.fixture
def client(home: Settings) -> TestClient:
    from fastapi import FastAPI

    app = FastAPI()
    app.include_router(routes(home))
    app.add_exception_handler(SpeculoosError, answer_error)
    return TestClient(app)


def download(client: TestClient, checkpoint_id: str):
    return client.get(f"/api/checkpoints/{checkpoint_id}/download")


def test_the_zip_holds_the_files_and_their_sums_agree(home: Settings, base_id: str, client: TestClient) -> None:
    folder = write_files(home.home / "checkpoints" / "one" / "attempt-1")
    response = download(client, add_checkpoint(home, base_id, "Köpfe / 1", path=str(folder)))
    assert response.headers["content-disposition"] == 'attachment; filename="tiny-K-pfe-1.zip"'
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    assert archive.testzip() is None
    assert sorted(archive.namelist()) == ["README.md", "SHA256SUMS", "config.json", "model.safetensors"]
    for line in archive.read("SHA256SUMS").decode().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(archive.read(name)).hexdigest() == digest


def test_a_damaged_checkpoint_is_not_given_away(home: Settings, base_id: str, client: TestClient) -> None:
    folder = write_files(home.home / "checkpoints" / "one" / "attempt-1")
    weights = folder / "model.safetensors"
    row_id = add_checkpoint(home, base_id, path=str(folder), sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
    assert download(client, row_id).status_code == 200
    with open(weights, "r+b") as file:
        file.seek(1_000_000)
        file.write(os.urandom(512))
    response = download(client, row_id)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "damaged")
    assert "'heads' is damaged: model.safetensors" in response.json()["error"]["message"]


def test_the_head_that_comes_with_the_starter_is_served_from_where_it_is_installed(
    home: Settings, base_id: str, client: TestClient
) -> None:
    response = download(client, add_checkpoint(home, base_id, path=str(STARTER_HEAD)))
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    assert archive.read("SHA256SUMS") == (STARTER_HEAD / "SHA256SUMS").read_bytes()


@pytest.mark.parametrize("location", ["/etc", "../outside", "link"])
def test_files_outside_of_the_store_are_never_served(
    home: Settings, base_id: str, client: TestClient, tmp_path: Path, location: str
) -> None:
    outside = write_files(tmp_path / "outside")
    store = home.home / "checkpoints"
    store.mkdir(parents=True)
    (store / "link").symlink_to(outside)
    path = {"/etc": "/etc", "../outside": str(store / ".." / ".." / "outside"), "link": str(store / "link")}[location]
    response = download(client, add_checkpoint(home, base_id, path=path))
    assert response.status_code == 404
    assert "cannot be downloaded" in response.json()["error"]["message"]


def test_an_unknown_or_unfinished_checkpoint_says_so(home: Settings, base_id: str, client: TestClient) -> None:
    assert download(client, "0" * 32).status_code == 404
    response = download(client, add_checkpoint(home, base_id, state="pending"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "conflict")


def test_missing_files_are_reported_rather_than_sent_empty(home: Settings, base_id: str, client: TestClient) -> None:
    path = home.home / "checkpoints" / "gone"
    response = download(client, add_checkpoint(home, base_id, path=str(path)))
    assert response.status_code == 404
    assert "are missing" in response.json()["error"]["message"]


def test_the_page_shows_lineage_figures_and_links(home: Settings, base_id: str) -> None:
    data_id = add(home, Dataset(name="prompts & answers", kind="conversations"))
    row_id = add_checkpoint(home, base_id, dataset_id=data_id, config={"settings": {"lr": 0.001, "heads": 4}})
    result = {"mean_accepted_length": 2.345, "speedup": 1.5, "identical_to_plain": True}
    add(home, Evaluation(name="eval", base_id=base_id, checkpoint_id=row_id, result=result))
    with reading(home) as session:
        row = session.get_one(Checkpoint, row_id)
        head, links = checkpoint_rows.head(session, row), checkpoint_rows.actions(session, row)
        listed = checkpoint_rows.checkpoints_table(session)
        config = checkpoint_rows.settings_table(row)
    assert f'href="/models?id={base_id}"' in head
    assert f'href="/data?id={data_id}"' in head
    assert "prompts &amp; answers" in head
    assert "2.35" in listed or "2.34" in listed
    assert "1.50×" in listed
    assert f"/api/checkpoints/{row_id}/download" in links
    assert "settings.lr" in config


def test_figures_that_came_with_the_files_are_called_reference_until_it_is_measured_here(
    home: Settings, base_id: str
) -> None:
    reference = {"mean_accepted_length": 2.15, "speedup": 1.7, "tokens_per_second": 53.4, "measured_on": "mt_bench"}
    row_id = add_checkpoint(home, base_id, figures=reference, config={"data": "5621 answers of the starter"})
    with reading(home) as session:
        row = session.get_one(Checkpoint, row_id)
        head, listed = checkpoint_rows.head(session, row), checkpoint_rows.checkpoints_table(session)
        assert head.count("reference: measured elsewhere") == 2 and "5621 answers of the starter" in head
        assert "reference" in listed and "measured<" not in listed and "5621 answers" in listed
        assert "1.70× (reference)" in targets.draft_choices(session, "tiny")[0][0]
    result = {"mean_accepted_length": 2.345, "busy": "The machine was busy.", "cut": "1 of 24 questions."}
    add(home, Evaluation(name="eval", base_id=base_id, checkpoint_id=row_id, result=result))
    with reading(home) as session:
        row = session.get_one(Checkpoint, row_id)
        head = checkpoint_rows.head(session, row)
    assert "reference" not in head and "1.70" not in head and "53.4" not in head
    assert "The machine was busy. 1 of 24 questions." in head


def test_names_are_shown_literally_everywhere(home: Settings, base_id: str) -> None:
    row_id = add_checkpoint(home, base_id, NASTY, note=NASTY, config={NASTY: NASTY})
    with reading(home) as session:
        row = session.get_one(Checkpoint, row_id)
        parts = (
            checkpoint_rows.checkpoints_table(session),
            checkpoint_rows.head(session, row),
            checkpoint_rows.actions(session, row),
            checkpoint_rows.settings_table(row),
        )
    for html in parts:
        assert "<img" not in html
        assert "${" not in html


def test_an_empty_list_says_how_to_get_one(home: Settings) -> None:
    with reading(home) as session:
        assert 'href="/runs/new"' in checkpoint_rows.checkpoints_table(session)


def test_only_drafts_that_fit_the_weights_are_offered(home: Settings, base_id: str) -> None:
    add_checkpoint(home, base_id, "fits")
    add_checkpoint(home, base_id, "stranger", base_sha256="b" * 64)
    add_checkpoint(home, base_id, "unfinished", state="pending")
    with reading(home) as session:
        values = [value for _, value in targets.draft_choices(session, "tiny")]
        why = targets.why_off(session, "tiny", "fits")
    assert values == ["fits", targets.LOOKUP_CHOICE, targets.PLAIN]
    assert "stranger" in why


@pytest.mark.parametrize(
    ("mtp", "offered"), [({"layers": 1, "reason": ""}, True), ({"layers": 1, "reason": "No."}, False)]
)
def test_a_models_own_layer_is_offered_if_it_can_draft(home: Settings, base_id: str, mtp: dict, offered: bool) -> None:
    with writing(home) as session:
        base = session.get_one(Base, base_id)
        base.card = {**(base.card or {}), "mtp": mtp}
    with reading(home) as session:
        values = [value for _, value in targets.draft_choices(session, "tiny")]
        compared = [value for _, value in targets.all_targets(session)]
        html = models.details(session.get_one(Base, base_id))
    assert (targets.OWN_CHOICE in values, "tiny:mtp" in compared) == (offered, offered)
    assert "1 layer" in html and ("No." in html) != offered


def test_the_best_measured_draft_is_offered_first_and_preselected(home: Settings, base_id: str) -> None:
    add_checkpoint(home, base_id, "fast", figures={"speedup": 1.9, "mean_accepted_length": 2.0})
    add_checkpoint(home, base_id, "deep", figures={"speedup": 1.4, "mean_accepted_length": 3.0})
    add_checkpoint(home, base_id, "estimated", figures={"mean_accepted_length": 2.5})
    add_checkpoint(home, base_id, "newest")
    with reading(home) as session:
        choices = targets.draft_choices(session, "tiny")
        compared = targets.all_targets(session)
        preselected = playground.drafts_of_base(session, "tiny")[1]
    assert [value for _, value in choices][:4] == ["fast", "deep", "estimated", "newest"]
    assert choices[0][0] == "fast · medusa · τ 2.00 · 1.90×"
    assert playground.opening(home, {}).draft == "fast" == preselected
    assert compare.opening(home, {}, [], compared)[0] == ["tiny", "tiny@fast"]


def test_the_address_goes_before_what_a_chat_used_last(home: Settings, base_id: str) -> None:
    for name in ("one", "two"):
        add_checkpoint(home, base_id, name)
    run, _ = turns.next_turn(home, "", "tiny@one", "hello", turns.TurnOptions())
    chat = {"chat": str(run.group_id)}
    assert playground.opening(home, chat).draft == "one"
    assert playground.opening(home, {**chat, "model": "tiny@two"}).draft == "two"
    assert playground.opening(home, {**chat, "model": "tiny"}).draft == targets.PLAIN


def test_the_page_says_why_speculation_is_off(home: Settings, base_id: str) -> None:
    with reading(home) as session:
        assert "no draft yet" in targets.why_off(session, "tiny", "")
    add_checkpoint(home, base_id)
    with reading(home) as session:
        assert "no draft is selected" in targets.why_off(session, "tiny", "")
        assert targets.why_off(session, "tiny", "heads") == ""
        assert "no base model yet" in targets.why_off(session, "unknown", "")


@pytest.mark.parametrize(
    ("reason", "draft", "off"),
    [("", targets.OWN_CHOICE, "no draft is selected"), ("MLA", targets.PLAIN, "no draft yet")],
)
def test_a_base_model_that_drafts_itself_does_so_by_default(
    home: Settings, base_id: str, reason: str, draft: str, off: str
) -> None:
    with writing(home) as session:
        base = session.get_one(Base, base_id)
        base.card = {"mtp": {"layers": 1, "reason": reason}}
    with reading(home) as session:
        base = session.get_one(Base, base_id)
        assert targets.default_draft(targets.draft_choices(session, "tiny")) == draft
        assert off in targets.why_off(session, "tiny", targets.PLAIN)
        link = urlsplit(unescape(re.search(r'href="([^"]*)"', models.uses(session, base))[1]))
    assert playground.opening(home, dict(parse_qsl(link.query))).draft == draft
    add_checkpoint(home, base_id)
    with reading(home) as session:
        assert targets.default_draft(targets.draft_choices(session, "tiny")) == "heads"


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ("heads", ("tiny@heads", "")),
        ("", ("tiny", "")),
        (targets.LOOKUP_CHOICE, ("tiny", "ngram")),
        (targets.OWN_CHOICE, ("tiny", "mtp")),
    ],
)
def test_what_is_picked_becomes_a_model_and_a_drafter(draft: str, expected: tuple[str, str]) -> None:
    picked = targets.target("tiny", draft)
    assert (picked.model, picked.drafter) == expected
    joined = f"tiny{draft}" if draft.startswith(":") else picked.model
    assert targets.parse(joined) == picked


def test_the_playground_opens_with_the_newest_draft_or_what_the_address_asks_for(home: Settings, base_id: str) -> None:
    assert opening(home, {}).draft == targets.PLAIN
    add_checkpoint(home, base_id, "old")
    add_checkpoint(home, base_id, "new")
    assert opening(home, {}).draft == "new"
    assert opening(home, {"model": "tiny@old"}).draft == "old"
    assert opening(home, {"model": "tiny"}).draft == targets.PLAIN
    assert opening(home, {"model": "gone@old"}).draft == "new"


def test_the_playground_reopens_a_chat_with_its_own_model(home: Settings, base_id: str) -> None:
    add_checkpoint(home, base_id, "old")
    add_checkpoint(home, base_id, "new")
    run, _ = turns.next_turn(home, "", "tiny", "hello", turns.TurnOptions(), LOOKUP)
    opened = opening(home, {"chat": run.group_id})
    assert (opened.base, opened.draft, opened.chat) == ("tiny", targets.LOOKUP_CHOICE, run.group_id)
    assert opening(home, {"chat": "../../etc"}).chat == ""


def test_an_evaluation_is_queued_with_a_link_to_its_job(home: Settings, base_id: str) -> None:
    row_id = add_checkpoint(home, base_id)
    with gr.Blocks() as blocks:
        CheckpointPanel(home, hidden("chosen"))
    submits = {fn.inputs[0].elem_id: fn.fn for fn in blocks.fns.values() if fn.name == "submit"}
    message, url = submits["checkpoint-evaluate-name"]("", row_id)
    with reading(home) as session:
        job = session.query(Job).one()
    assert (job.kind, job.request["checkpoint_id"]) == ("evaluate", row_id)
    assert (message, url) == ("", f"/runs?id={job.id}")
    assert "does not exist" in submits["checkpoint-evaluate-name"]("", "0" * 32)[0]
    assert "choose a dataset" in submits["checkpoint-replay-name"]("", row_id, None)[0]


def test_the_page_notices_when_an_evaluation_ends(home: Settings, base_id: str) -> None:
    row_id = add_checkpoint(home, base_id)
    evaluation_id = add(home, Evaluation(name="eval", base_id=base_id, checkpoint_id=row_id))
    with reading(home) as session:
        before = checkpoint_rows.signature(session)
    with writing(home) as session:
        evaluation = session.get_one(Evaluation, evaluation_id)
        evaluation.result, evaluation.state = {"mean_accepted_length": 1.5}, "ready"
    with reading(home) as session:
        assert checkpoint_rows.signature(session) != before
