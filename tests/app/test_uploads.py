"""An upload belongs to the browser session that sent it, and no input of a page makes the server fetch a URL."""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.forms import import_request
from app.main import make_app
from app.views.import_form import PROMPTS_ONLY
from app.visitor import BROWSER
from speculoos.errors import BadInput
from speculoos.settings import Settings, load
from tests.tools.asgi import ask, gradio_app
from tests.tools.databases import migrate
from tests.tools.loops import run_async
from tracking.db import reading
from tracking.tables import Job

PROMPTS = b'{"prompt": "Why is the sky blue?"}\n'
EVENT = "/gradio_api/run/predict"


@pytest.fixture(scope="module")
def application(settings: Settings) -> Any:
    return make_app(settings)


@pytest.fixture
def pages(application: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application with its own upload folder; another one in this process may have changed Gradio's setting."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(settings.home / "uploads"))
    return application


@pytest.fixture
def ours(pages: Any) -> TestClient:
    """A browser that has the Data page open."""
    return browser(pages)


@pytest.fixture
def theirs(pages: Any) -> TestClient:
    """Another browser on the same page."""
    return browser(pages)


def browser(pages: Any) -> TestClient:
    client = TestClient(pages, base_url="http://127.0.0.1:7860")
    assert client.get("/data").status_code == 200
    return client


def send_file(client: TestClient, name: str = "prompts.jsonl", content: bytes = PROMPTS) -> str:
    response = client.post("/gradio_api/upload", files={"files": (name, content)})
    assert response.status_code == 200
    return response.json()[0]


def press_import(client: TestClient, pages: Any, file: Any) -> Any:
    """Press the Data page's Import button with `file` in its field."""
    fn = event_of(pages, "data-upload", "data-limit")
    filled = {"data-upload": file, "data-kind": PROMPTS_ONLY, "data-answered-by": None, "data-suite": None}
    data = [filled.get(box.elem_id, "") for box in fn.inputs]
    return client.post(EVENT, json={"data": data, "fn_index": fn._id, "session_hash": "x"})


def event_of(pages: Any, *elem_ids: str) -> Any:
    """The first event that reads these components."""
    blocks = gradio_app(pages).get_blocks()
    return next(f for f in blocks.fns.values() if {*elem_ids} <= {i.elem_id for i in f.inputs})


def look_at(client: TestClient, pages: Any, files: Any) -> Any:
    """Send the form of published drafts with `files` in its field."""
    fn = event_of(pages, "drafts-files")
    data = [
        files if i.elem_id == "drafts-files" else "upload" if i.elem_id == "drafts-source" else "" for i in fn.inputs
    ]
    field_id = next(i._id for i in fn.inputs if i.elem_id == "drafts-files")
    event = {"event_data": files, "trigger_id": field_id}  # as a browser sends when a file field changes
    return client.post(EVENT, json={"data": data, "fn_index": fn._id, "session_hash": "x", **event})


def file_data(path: str, **fields: Any) -> dict[str, Any]:
    return {"path": path, "orig_name": "prompts.jsonl", "size": 9, "meta": {"_type": "gradio.FileData"}, **fields}


@pytest.mark.integration
def test_an_upload_of_the_same_browser_is_imported(ours: TestClient, pages: Any, settings: Settings) -> None:
    path = send_file(ours)
    response = press_import(ours, pages, file_data(path, url="http://127.0.0.1:9/x", is_stream=True))
    assert response.status_code == 200, response.text
    with reading(settings) as session:
        job = session.scalar(select(Job).where(Job.kind == "import_prompts"))
    assert job.request["original_name"] == "prompts.jsonl"
    assert Path(job.request["path"]).read_bytes() == PROMPTS


def test_another_browsers_upload_is_neither_imported_nor_served(
    ours: TestClient, theirs: TestClient, pages: Any
) -> None:
    path = send_file(ours, content=b'{"prompt": "a secret of ours"}\n')
    response = press_import(theirs, pages, file_data(path))
    assert response.status_code == 400
    assert "not uploaded from this browser session" in response.json()["error"]
    assert theirs.get(f"/gradio_api/file={path}").status_code == 404
    assert ours.get(f"/gradio_api/file={path}").status_code == 200


def test_a_field_for_several_files_accepts_only_uploads_of_the_same_browser(
    ours: TestClient, theirs: TestClient, pages: Any, settings: Settings
) -> None:
    config, other = send_file(ours, "config.json", b"{}"), send_file(theirs, "model.safetensors", b"x" * 16)
    before = {*(settings.home / "uploads").iterdir()}
    response = look_at(ours, pages, [file_data(config)])
    assert response.status_code == 200 and "choose the model that the draft was trained for" in response.text
    assert {*(settings.home / "uploads").iterdir()} == before, "no empty file stays behind"
    for wrong in (
        [file_data(config), file_data(other)],
        file_data(config),
        [file_data(config), None],
        [[file_data(config)]],
        [file_data(config)] * 65,
        [file_data(str(settings.home / "speculoos.db"))],
    ):
        assert look_at(ours, pages, wrong).status_code == 400, wrong


def test_an_upload_stays_its_browsers_over_a_restart(ours: TestClient, settings: Settings) -> None:
    path = send_file(ours, content=b'{"prompt": "before the restart"}\n')
    again = TestClient(make_app(settings), base_url="http://127.0.0.1:7860", cookies=ours.cookies)
    assert again.get(f"/gradio_api/file={path}").status_code == 200


def test_behind_a_password_the_login_owns_the_upload(tmp_path: Path) -> None:
    settings = replace(load({"SPECULOOS_HOME": str(tmp_path / "home")}), password="cinnamon")
    migrate(settings)
    pages = make_app(settings)
    first, second = (TestClient(pages, base_url="http://127.0.0.1:7860") for _ in range(2))
    for client in (first, second):
        client.post("/login", data={"password": "cinnamon"})
    path = send_file(first)
    assert first.get(f"/gradio_api/file={path}").status_code == 200
    assert second.get(f"/gradio_api/file={path}").status_code == 404
    assert press_import(second, pages, file_data(path)).status_code == 400


def test_other_spellings_links_and_files_beside_an_upload_are_refused(
    ours: TestClient, pages: Any, settings: Settings
) -> None:
    path = send_file(ours, content=b'{"prompt": "spelt"}\n')
    folder = Path(path).parent
    (folder / "link.jsonl").symlink_to(settings.home / "speculoos.db")
    marker = next(file for file in folder.iterdir() if file.name.startswith("."))
    uploads = settings.home / "uploads"
    for other in (
        folder / "link.jsonl",
        marker,
        f"{folder}/../{folder.name}/prompts.jsonl",
        f"{uploads}//{folder.name}/prompts.jsonl",
        f"{folder}/../../speculoos.db",
        folder,
        settings.home / "speculoos.db",
        "/etc/passwd",
        "",
        "prompts.jsonl",
    ):
        assert press_import(ours, pages, file_data(str(other))).status_code == 400, other
        cookie = f"{BROWSER}={ours.cookies[BROWSER]}"
        assert run_async(ask(pages, "GET", f"/gradio_api/file={other}", cookie=cookie)).status == 404, other


@pytest.mark.integration
def test_an_uploaded_drawing_or_page_is_saved_never_shown(ours: TestClient, pages: Any) -> None:
    for name in ("x.svg", "x.html"):
        path = send_file(ours, name, b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
        press_import(ours, pages, file_data(path))
        response = ours.get(f"/gradio_api/file={path}")
        assert response.headers["content-disposition"] == "attachment"
        assert response.headers["content-security-policy"] == "sandbox"


@pytest.fixture
def listener() -> Iterator[tuple[int, list[int]]]:
    """A port, and a list with an entry for each connection to it."""
    calls: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                try:
                    server.accept()[0].close()
                    calls.append(1)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], calls
        done.set()
        thread.join()


@pytest.mark.integration
def test_no_address_makes_the_server_fetch_it(ours: TestClient, pages: Any, listener: Any) -> None:
    port, calls = listener
    url = f"http://127.0.0.1:{port}/x"
    path = send_file(ours)
    assert press_import(ours, pages, file_data(url)).status_code == 400
    assert press_import(ours, pages, file_data(path, url=url)).status_code == 200
    for address in (f"/gradio_api/file={url}", f"/gradio_api/proxy={url}", f"/gradio_api/file/{url}"):
        assert ours.get(address).status_code == 404
    assert not calls


def test_an_invalid_or_too_large_event_is_refused(ours: TestClient) -> None:
    for body in (b"[]", b"", b"{", b'{"data": [1], "fn_index": 10000000}', b'{"data": [], "fn_index": true}'):
        response = ours.post(EVENT, content=body)
        assert response.status_code == 400
        assert response.json()["error"].endswith("eload the page.")
    huge = json.dumps({"data": ["x" * (9 << 20)], "fn_index": 0})
    assert "larger than" in ours.post(EVENT, content=huge).json()["error"]


@pytest.mark.parametrize("name", ["secrets/inference-token", "speculoos.db", "uploads/x/prompts.jsonl", "logs/web.log"])
def test_a_form_cannot_name_private_files_of_the_home(settings: Settings, name: str) -> None:
    for variant in (settings, replace(settings, password="cinnamon")):
        with pytest.raises(BadInput, match="not accessible from pages"):
            import_request(variant, None, str(settings.home / name), None)
    with pytest.raises(BadInput, match="not accessible from pages"):
        import_request(settings, None, "/proc/self/environ", None)


def test_behind_a_password_a_form_can_name_only_files_of_the_home(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_bytes(PROMPTS)
    outside = str(tmp_path / "prompts.jsonl")
    assert import_request(settings, None, outside, None).path == outside
    for shared in (replace(settings, password="x"), replace(settings, allowed_hosts=("work.example",))):
        with pytest.raises(BadInput, match="only files under"):
            import_request(shared, None, outside, None)
