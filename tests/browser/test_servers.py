"""llama.cpp started from the page: it generates data, chats, is compared and stopped."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from speculoos import running_servers
from tests.browser.services import SLOW, box, choose, head_is, job_is, limit_tokens, row_id, write_prompts
from tests.browser.test_compare import wait_finished
from tests.browser.test_playground import ask
from tests.browser.workbench import Workbench
from tracking.db import writing
from tracking.tables import Base, Checkpoint, new_id
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

pytestmark = pytest.mark.browser
PROMPTS = 20


@pytest.fixture(scope="module")
def bench(workbench: Workbench) -> Iterator[Workbench]:
    """The session's workbench with its workers, and llama.cpp from this environment."""
    settings = workbench.settings.home / "settings.toml"
    settings.write_text(f"[servers.llamacpp]\npython = {json.dumps(sys.executable)}\n")
    with workbench.with_workers():
        yield workbench
    settings.unlink()


@pytest.fixture(scope="module")
def draft(bench: Workbench) -> str:
    """A standalone draft of the tiny base: its first three layers."""
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.standalone import StandaloneDraft

    with writing(bench.settings) as rows:
        base_row = rows.query(Base).filter_by(name="tiny").one()
    row_id, base = new_id(), load_base(base_row.path)
    folder = bench.settings.home / "checkpoints" / row_id / "attempt-1"
    save_draft(folder, StandaloneDraft.from_base(base, 3), {"base": "tiny", "base_sha256": base_row.weights_sha256})
    row = Checkpoint(id=row_id, name="layers", method="draft", state="ready", base_id=base_row.id, path=str(folder))
    row.base_sha256, row.attempt = base_row.weights_sha256, 1
    return bench.add(row)


def server_process(page: Page, bench: Workbench) -> psutil.Process:
    """Wait until the open job's server is ready; returns its process."""
    expect(page.locator("#job-head")).to_contain_text("Ready: endpoint tiny-layers-llamacpp", timeout=SLOW)
    url = running_servers.running(bench.settings.home)["tiny-layers-llamacpp"]["endpoint"]["url"]
    port = int(re.search(r":(\d+)/", url)[1])
    listening = [c for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == psutil.CONN_LISTEN]
    return psutil.Process(listening[0].pid)


def test_a_server_from_start_to_stop(page: Page, bench: Workbench, draft: str, tmp_path: Path) -> None:
    prompts = ImportPrompts(path=str(write_prompts(tmp_path, PROMPTS)))  # while the server starts
    data = submit(prompts, name="served prompts", settings=bench.settings).request["dataset_id"]
    page.goto(f"{bench.url}/models/drafts?id={draft}")
    page.get_by_role("link", name="Serve", exact=True).click()
    expect(page.locator("#servers-model input")).to_have_value("tiny@layers")
    expect(page.locator("#servers-engines")).to_contain_text(sys.executable)
    page.locator("#servers-start").click()
    page.wait_for_url("**/runs?id=*")
    job, server = page.url, server_process(page, bench)
    expect(page.locator("#job-head .sp-command")).to_contain_text("/chat/completions")

    page.goto(f"{bench.url}/data?id={data}")
    head_is(page, "dataset-head", "ready")
    choose(page, "generate-model", "endpoint tiny-layers-llamacpp")
    box(page, "generate-max-tokens").fill("8")
    box(page, "generate-name").fill("served answers")
    expect(page.locator("#generate-review .sp-command")).to_contain_text("--max-tokens 8")
    page.locator("#generate-start").click()
    page.wait_for_url("**/runs?id=*")
    job_is(page, "SUCCEEDED")
    expect(page.locator("#job-head")).to_contain_text(f"{PROMPTS}")

    page.goto(job)
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(page.locator("#base input")).to_have_value("tiny-layers-llamacpp · server")
    ask(page, "Count to three.")
    turn = page.locator('.sp-turn[data-state="SUCCEEDED"]')
    expect(turn).to_contain_text("llama.cpp publishes totals, not which tokens were drafted", timeout=SLOW)
    expect(page.locator(".sp-side")).to_contain_text("drafted tokens accepted, as counted by llama.cpp")

    page.goto(f"{bench.url}/playground/compare?models=@tiny-layers-llamacpp&models=tiny@layers&prompt=hello")
    expect(page.locator("#compare-prompt textarea")).to_have_value("hello")
    limit_tokens(page)
    page.locator("#compare-run").click()
    wait_finished(page)

    page.goto(f"{bench.url}/models/servers")
    row = page.locator("#servers-table tr", has_text="tiny-layers-llamacpp").first
    expect(row).to_contain_text("Ready")
    row.get_by_role("button", name="Stop").click()
    expect(row).to_contain_text("Cancelled", timeout=SLOW)
    psutil.wait_procs([server], 30)
    assert not server.is_running()
    assert running_servers.running(bench.settings.home) == {}


def test_a_draft_is_compared_with_the_server_from_its_page(page: Page, bench: Workbench, draft: str) -> None:
    page.goto(f"{bench.url}/models/drafts?id={draft}")
    page.get_by_role("tab", name="Evaluations").click()
    box(page, "checkpoint-prove-limit").fill("3")
    box(page, "checkpoint-prove-tokens").fill("12")
    expect(page.locator("#checkpoint-prove-review .sp-command")).to_contain_text("--limit 3 --max-tokens 12")
    page.locator("#checkpoint-prove-start").click()
    page.wait_for_url("**/runs?id=*")
    assert row_id(page)
    job_is(page, "SUCCEEDED")
    report = page.locator("#job-report")
    expect(report).to_contain_text(re.compile(r"Acceptance in llama\.cpp \S+ matches this engine: τ"))
    expect(report).to_contain_text("Accepted at position 1")
    page.goto(f"{bench.url}/models/drafts?id={draft}")
    expect(page.locator("#checkpoint-exports")).to_contain_text("same acceptance in llama.cpp")
