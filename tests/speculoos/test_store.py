"""The store: folders are complete or absent, nothing is sent twice, and damaged files are never returned."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from speculoos.errors import BadInput, Damaged
from speculoos.settings import load
from speculoos.store import KEY_FILE, Store, StoreUnavailable, files_to_upload, hide_credentials, open_store, read_key
from tests.tools.s3 import S3, Missing

pytestmark = pytest.mark.integration

PREFIX = "datasets/one"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    try:
        server = S3()
    except Missing as reason:
        pytest.skip(str(reason))
    yield server
    server.end()


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "file":
        return Store(f"file://{tmp_path}/store")
    if request.param == "memory":
        return Store(f"memory://{uuid.uuid4().hex}")
    server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Store(f"{server.url}/{uuid.uuid4().hex}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    (path / "inner").mkdir(parents=True)
    (path / "a.txt").write_text("a")
    (path / "inner" / "b.bin").write_bytes(os.urandom(70_000))
    for left_out in (".half", "parts", "state-3"):
        (path / left_out).mkdir()
        (path / left_out / "x").write_text("stays here")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files_to_upload(folder).items()}


def test_a_folder_comes_back_as_it_was(store: Store, folder: Path, tmp_path: Path) -> None:
    stored = store.put_folder(PREFIX, folder)
    assert stored.bytes == 70_001
    target = tmp_path / "there"
    store.get_folder(PREFIX, stored.key, target)
    assert contents(target) == contents(folder) and set(contents(target)) == {"a.txt", "inner/b.bin"}
    assert read_key(target) == stored.key and not (target / "parts").exists()
    assert store.put_folder(PREFIX, folder) == stored, "the same content has the same key"


def test_a_file_alone_is_a_folder_of_it(store: Store, folder: Path, tmp_path: Path) -> None:
    stored = store.put_folder(PREFIX, folder / "a.txt")
    store.get_folder(PREFIX, stored.key, tmp_path / "there")
    assert contents(tmp_path / "there") == {"a.txt": b"a"}


def test_an_older_folder_becomes_the_newer_one_and_keeps_files_that_are_not_stored(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "there"
    store.get_folder(PREFIX, store.put_folder(PREFIX, folder).key, target)
    (target / "parts").mkdir()
    (target / "parts" / "work").write_text("mine")
    inode = (target / "inner" / "b.bin").stat().st_ino
    (folder / "a.txt").unlink()
    (folder / "c.txt").write_text("new")
    newer = store.put_folder(PREFIX, folder)
    store.get_folder(PREFIX, newer.key, target)
    assert set(contents(target)) == {"c.txt", "inner/b.bin"} and read_key(target) == newer.key
    assert (target / "inner" / "b.bin").stat().st_ino == inode, "what was right already is not fetched again"
    assert (target / "parts" / "work").read_text() == "mine"


def test_a_folder_exists_once_its_list_is_written(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store, "write", killed)
        store.put_folder(PREFIX, folder)
    assert len(store.names(f"{PREFIX}/files")) == 2 and not store.names(f"{PREFIX}/folders")
    stored = store.put_folder(PREFIX, folder)
    assert set(store.listed(PREFIX, stored.key)) == {"a.txt", "inner/b.bin"}


def test_half_a_file_is_put_again(store: Store, folder: Path, tmp_path: Path) -> None:
    stored = store.put_folder(PREFIX, folder)
    sha256 = store.listed(PREFIX, stored.key)["inner/b.bin"]["sha256"]
    store.write(f"{PREFIX}/files/{sha256}", b"half")
    with pytest.raises(Damaged, match="damaged"):
        store.get_folder(PREFIX, stored.key, tmp_path / "there")
    assert not (tmp_path / "there" / "inner" / "b.bin").exists() and read_key(tmp_path / "there") == ""
    store.put_folder(PREFIX, folder)
    store.get_folder(PREFIX, stored.key, tmp_path / "there")
    assert contents(tmp_path / "there") == contents(folder)


def test_nothing_is_sent_twice(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_folder(PREFIX, folder)
    sent: list[str] = []
    real = store._fs.put_file
    monkeypatch.setattr(store._fs, "put_file", lambda path, *rest: (sent.append(path), real(path, *rest)))
    (folder / "c.txt").write_text("more")
    store.put_folder(PREFIX, folder)
    assert sent == [str(folder / "c.txt")]


def test_missing_or_changed_files_are_reported(store: Store, folder: Path, tmp_path: Path) -> None:
    stored = store.put_folder(PREFIX, folder)
    store.write(f"{PREFIX}/folders/{stored.key}.json", b'{"../../evil": {"sha256": "0", "bytes": 1}}')
    with pytest.raises(Damaged, match="missing or damaged"):
        store.listed(PREFIX, stored.key)
    assert store.delete(PREFIX) > 70_000 and store.names(PREFIX) == {} and store.delete(PREFIX) == 0
    with pytest.raises(Damaged, match="missing or damaged"):
        store.get_folder(PREFIX, stored.key, tmp_path / "there")
    assert store.read(f"{PREFIX}/nothing") is None
    with pytest.raises(FileNotFoundError):
        store.get_file(f"{PREFIX}/nothing", tmp_path / "nothing")


def test_a_folder_is_deleted_without_its_neighbour(store: Store, folder: Path) -> None:
    store.put_folder("datasets/one", folder)
    store.put_folder("datasets/one-more", folder)
    store.delete("datasets/one")
    assert store.names("datasets/one") == {} and len(store.names("datasets/one-more")) == 3


def test_a_list_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    import hashlib
    import json

    store = Store(f"file://{tmp_path}/store")
    text = json.dumps({"../../evil": {"sha256": "0", "bytes": 1}}).encode()
    key = hashlib.sha256(text).hexdigest()
    store.write(f"{PREFIX}/folders/{key}.json", text)
    with pytest.raises(Damaged, match="outside of its folder"):
        store.get_folder(PREFIX, key, tmp_path / "there")


def test_the_key_file_is_no_content(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("key")
    assert files_to_upload(tmp_path) == {}


def test_an_invalid_store_is_reported_in_one_sentence(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreUnavailable, match="cannot be accessed"):
        Store(f"file://{tmp_path}/file").put_folder(PREFIX, folder)
    with pytest.raises(BadInput, match="SPECULOOS_STORE"):
        open_store("nosuch://bucket")
    for wrong in ("bucket/folder", "s3:bucket", "s3://"):
        with pytest.raises(BadInput, match="SPECULOOS_STORE: expected a URL"):
            load({"SPECULOOS_STORE": wrong, "SPECULOOS_HOME": str(tmp_path)})
    assert open_store("") is None
    assert load({"SPECULOOS_STORE": "s3://bucket/", "SPECULOOS_HOME": str(tmp_path)}).store == "s3://bucket"


def test_user_and_key_of_its_address_are_not_shown() -> None:
    for key in ("hidden", "hid/den+", "hid:den"):
        assert hide_credentials(f"s3://someone:{key}@bucket/x@y") == "s3://bucket/x@y"
    for plain in ("s3://bucket/x@y", "s3://bucket/a:b@c", "file:///x/a:b@c"):
        assert hide_credentials(plain) == plain


def test_an_unreachable_s3_server_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-4711")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreUnavailable) as error:
        Store("s3://someone:hidden@bucket/x").read("nothing")
    assert "hidden" not in str(error.value) and "very-secret" not in str(error.value)
