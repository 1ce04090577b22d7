"""The frame around the pages: its assets, navigation, status strip and escaping."""

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app import theme
from app.gradio_gate import FRAMES
from app.main import make_app, make_pages
from app.paths import MOVED, PAGES, SECTIONS
from app.views import shell, status_bar
from app.widgets import elements, formatting
from app.widgets.text import safe, safe_with_code, tag
from speculoos.settings import Settings, load
from tests.tools import fake_gpus
from tests.tools.databases import migrate
from tracking import processes
from tracking.db import writing
from tracking.tables import Job, Preference, now
from workers.supervise.worker import worker_status

NASTY = [
    "<img src=x onerror=alert(1)>",
    "${alert(1)}",
    "{{constructor}}",
    "`${1}`",
    "a\" onclick='x'",
    "\\u003cscript>",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """One application for all tests of the file, since building all pages takes seconds."""
    settings = load({"SPECULOOS_HOME": str(tmp_path_factory.mktemp("home"))})
    migrate(settings)
    return TestClient(make_app(settings), base_url="http://127.0.0.1:7860")


def test_every_page_loads_and_has_its_style_in_the_head(client: TestClient) -> None:
    for path in PAGES.values():
        page = client.get(path)
        assert page.status_code == 200, path
        head = page.text.split("</head>")[0]
        assert theme.asset("style.css") in head, path


def test_pages_are_sent_compressed_and_small(client: TestClient) -> None:
    """Gradio's own scripts are 230 to 290 kB; with these, no page is heavier than 500 kB."""
    names = re.findall(r'(?:href|src)="([^"]+)"', theme.head())
    frame = sum(int(client.get(name).headers["content-length"]) for name in names)
    for path in PAGES.values():
        page = client.get(path)
        assert page.headers["content-encoding"] == "gzip" and "</html>" in page.text, path
        assert frame + int(page.headers["content-length"]) < 150_000, path
    assert "content-encoding" not in client.get("/", headers={"Accept-Encoding": "identity"}).headers


def test_no_accordion_makes_its_fields_only_when_it_opens(home: Settings) -> None:
    """See app.widgets.elements.closed_accordion."""
    accordions = [c["props"] for c in make_pages(home).config["components"] if c["type"] == "accordion"]
    lazy = [props["label"] for props in accordions if props["open"] is False]
    assert {props["open"] for props in accordions} == {0, True} and not lazy


def test_what_the_head_names_is_served(client: TestClient) -> None:
    for address in re.findall(r'(?:href|src)="([^"]+)"', theme.head()):
        assert client.get(address).status_code == 200, address


def test_browsers_cache_the_font_and_files_with_a_hash(client: TestClient) -> None:
    addresses = re.findall(r'(?:href|src)="([^"]+)"', theme.head())
    assert theme.asset("inter.woff2") in addresses
    assert all("immutable" in client.get(address).headers["cache-control"] for address in addresses)
    assert 'url("inter.woff2")' in (theme.STATIC / "tokens.css").read_text()
    assert (theme.STATIC / "inter.woff2").stat().st_size < 120_000
    assert "cache-control" not in client.get("/ui/style.css").headers


def test_modules_import_what_is_served_beside_them(client: TestClient) -> None:
    for name in theme.modules():
        address = theme.asset(name)
        for imported in re.findall(r'^import .*"\./([\w.]+)";$', client.get(address).text, re.MULTILINE):
            assert client.get(address.replace(name, imported)).status_code == 200, (name, imported)
    imported_names = set(
        re.findall(r'"\./([\w.]+)"', "".join((theme.STATIC / name).read_text() for name in theme.modules()))
    )
    assert imported_names <= set(theme.modules())


def test_nothing_requests_frames_in_the_script_of_gradio_s_status(client: TestClient) -> None:
    [script] = Path(gr.__file__).parent.glob("templates/frontend/assets/statustracker-*.js")
    response = client.get(f"/assets/{script.name}")
    assert len(FRAMES.findall(script.read_bytes())) == 2 and not FRAMES.search(response.content)
    assert len(response.content) == script.stat().st_size


def test_the_head_names_nothing_outside() -> None:
    assert not re.search(r'(?:href|src)="(?!/ui/)', theme.head())


def test_health_says_ok(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_a_foreign_host_is_refused_on_pages_and_gradio_routes(client: TestClient) -> None:
    for path in ("/", "/gradio_api/info", "/api/runs/x"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 403, path


def test_an_unknown_address_is_a_page_for_browsers_and_plain_for_scripts(client: TestClient) -> None:
    path = "/nothing/%3Cb%3Esesame"
    page = client.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404 and page.headers["content-type"].startswith("text/html")
    assert "There is no page at this address." in page.text and 'data-sp="find"' in page.text
    assert 'aria-label="Sections"' in page.text and "sesame" not in page.text
    assert "script-src" in page.headers["content-security-policy"] and page.headers["cache-control"] == "no-store"
    for headers in ({"Accept": "application/json"}, {}):
        assert client.get(path, headers=headers).text == "Not found.\n"
    assert client.post(path, headers={"Accept": "text/html"}).text == "Not found.\n"
    assert client.get("/api/find/x", headers={"Accept": "application/json"}).status_code == 404


def test_gradio_serves_no_file_of_the_machine(client: TestClient) -> None:
    for path in ("/etc/passwd", str(Path(__file__).resolve()), "app/main.py"):
        assert client.get(f"/gradio_api/file={path}").status_code in (403, 404), path


def test_every_color_token_of_the_theme_is_in_the_style_sheet_light_and_dark() -> None:
    css = (theme.STATIC / "tokens.css").read_text()
    light, dark = css.split(":root.dark, .dark {")[0], css.split(":root.dark, .dark {")[1].split("}")[0]
    for token in theme.VARIABLES:
        assert f"--sp-{token}:" in light, token
        assert f"--sp-{token}:" in dark, token


@pytest.mark.parametrize("ground", ["bg", "surface", "sunken"])
@pytest.mark.parametrize("ink", ["ink", "muted", "accent", "draft", "own", "reject", "good", "warn", "bad", "info"])
def test_text_is_readable_on_every_background_in_both_themes(ink: str, ground: str) -> None:
    """WCAG AA: contrast of at least 4.5."""
    css = (theme.STATIC / "tokens.css").read_text()
    for block in (css.split(":root.dark")[0], css.split(":root.dark, .dark {")[1].split("}")[0]):
        colors = dict(re.findall(r"--sp-([a-z-]+): (#[0-9a-f]{6})", block))
        assert contrast(colors[ink], colors[ground]) >= 4.5, (ink, ground)


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("text", NASTY)
def test_user_text_never_becomes_markup_or_a_template(text: str) -> None:
    for html in (
        safe(text),
        safe_with_code(text),
        tag("b", safe(text)),
        elements.notice(text),
        elements.empty_state(text, text),
    ):
        inner = re.sub(r"</?(?:b|code|div|span|h2|p|wbr)(?: [a-z-]+=\"[^\"<>]*\")*>", "", html)
        assert not set(inner) & set('<>${}`"\\'), inner


def test_what_stands_between_backticks_is_shown_as_code() -> None:
    assert safe_with_code("Run `make <up>` here, `not") == "Run <code>make &lt;up&gt;</code> here, &#96;not"


def test_attribute_values_are_escaped() -> None:
    assert tag("a", "x", href='" onclick="alert(1)', hidden=True, title=None) == (
        '<a href="&quot; onclick=&quot;alert(1)" hidden>x</a>'
    )


def test_navigation_marks_the_page_one_is_on() -> None:
    for section, pages in SECTIONS.items():
        first, *others = pages
        assert re.findall(r'<a href="([^"]+)" aria-current="page">', shell.bar(first)) == [PAGES[first]], section
        for page in others:
            assert re.findall(r'<a href="([^"]+)" aria-current="true">', shell.bar(page)) == [PAGES[first]], page
            assert re.findall(r'<a href="([^"]+)" aria-current="page">', shell.tabs(page)) == [PAGES[page]]
    assert 'class="sp-brand" aria-current="page"' in shell.bar("home")


def test_every_page_belongs_to_one_section() -> None:
    assert sorted(page for pages in SECTIONS.values() for page in pages) == sorted(set(PAGES) - {"home"})
    assert len(SECTIONS) == 6


@pytest.mark.parametrize("name", MOVED)
def test_an_address_of_version_0_1_redirects_with_its_query(client: TestClient, name: str) -> None:
    response = client.get(f"/{name}?id=a%26b&find=x+y", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (308, f"{PAGES[name]}?id=a%26b&find=x+y")
    assert client.get(f"/{name}", follow_redirects=False).headers["location"] == PAGES[name]
    assert client.get(f"/{name}").status_code == 200


def test_all_addresses_of_version_0_1_lead_to_a_page(client: TestClient) -> None:
    names = "models data train jobs playground compare checkpoints evaluations storage settings experiments trainings"
    for path in ("/", *(f"/{name}" for name in names.split())):
        response = client.get(path)
        assert response.status_code == 200 and response.url.path in PAGES.values(), path


def test_the_strip_names_the_running_job_its_progress_and_the_queue(home: Settings) -> None:
    with writing(home) as session:
        session.add(
            Job(name="<b>train", kind="train", queue="gpu", state="RUNNING", done=30, total=120, eta_seconds=95.0)
        )
        session.add(Job(name="next", kind="train", queue="gpu"))
    html = status_bar.render(home)
    assert "25% · 1 min 35 s left · 1 waiting" in html
    assert "<b>train" not in html


def test_a_server_that_runs_hides_no_job(home: Settings) -> None:
    with writing(home) as session:
        server = Job(name="serve", kind="serve", queue="io", state="RUNNING", progress_note="Ready", started_at=now())
        later = now() + timedelta(hours=1)
        session.add_all([server, Job(name="train", kind="train", queue="gpu", state="RUNNING", started_at=later)])
        session.flush()
        assert "train" in status_bar.job_chip(session)
        session.delete(session.scalars(select(Job).where(Job.kind == "train")).one())
        session.flush()
        assert "Ready" in status_bar.job_chip(session)


@pytest.mark.parametrize(("free", "look", "shown"), [(65e9, "sp-calm", "65.0 GB"), (1.5e9, "sp-bad", "1.5 GB")])
def test_the_strip_shows_the_free_disk_space(
    home: Settings, monkeypatch: pytest.MonkeyPatch, free: float, look: str, shown: str
) -> None:
    assert " free</span>" in status_bar.render(home)
    monkeypatch.setattr(status_bar.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert status_bar.disk_chip(home.home) == f'<span class="sp-chip {look}">Disk {shown} free</span>'


def test_the_strip_says_which_process_is_silent(home: Settings) -> None:
    assert "no worker has reported yet" in status_bar.render(home)
    with writing(home) as session:
        processes.beat(session, "worker-io")
        old = now() - timedelta(hours=1, minutes=5)
        session.add(Preference(key="process:worker-gpu@x:1", value={"name": "worker-gpu"}, updated_at=old))
    assert "worker-gpu has not reported for 1 h 5 min" in status_bar.render(home)


def test_a_process_that_was_restarted_counts_as_alive(home: Settings) -> None:
    with writing(home) as session:
        old = now() - timedelta(seconds=95)
        session.add(Preference(key="process:worker-gpu@x:1", value={"name": "worker-gpu"}, updated_at=old))
        processes.beat(session, "worker-gpu")
    assert "worker-gpu alive" in status_bar.render(home)


def test_the_strip_shows_each_gpu_once(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.install_in_nvml(monkeypatch, 2)
    assert worker_status(home, "io") == {}
    old = now() - timedelta(seconds=95)
    with writing(home) as session:
        processes.beat(session, "worker-gpu", **worker_status(home, "gpu"))
        status = worker_status(home, "gpu")
        session.add(Preference(key="process:worker-gpu@x:1", value=status, updated_at=now()))
        lost = {"gpus": [{**status["gpus"][0], "uuid": "GPU-dead"}]}
        session.add(Preference(key="process:worker-gpu@y:1", value=lost, updated_at=old))
    html = status_bar.render(home)
    assert html.count("GPU-5d3b1c20 0% · 0 B of 80.0 GB · 50 °C") == 1
    assert html.count("GPU-5d3b1c21 10% · 1.0 GB of 80.0 GB<") == 1 and "GPU-dead" not in html


def test_the_strip_says_when_the_database_is_not_there(tmp_path: Path) -> None:
    settings = load({"SPECULOOS_HOME": str(tmp_path / "none"), "DATABASE_URL": f"sqlite:///{tmp_path}/none/x.db"})
    assert "cannot be used now" in status_bar.render(settings)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (93_000_000, "93.0 MB"), (5e12, "5.0 TB")]
)
def test_sizes_in_words(value: float, text: str) -> None:
    assert formatting.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "measuring…"), (3.9, "3 s"), (95, "1 min 35 s"), (7265, "2 h 1 min")]
)
def test_durations_in_words(value: float | None, text: str) -> None:
    assert formatting.duration(value) == text
