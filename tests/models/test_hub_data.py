"""Datasets on the hub: which files are chosen, which errors are reported, and fetching files one by one.

The hub is tests/models/hub_server.py. Clients are separate processes: huggingface_hub reads its address at import.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.hub import Files
from models.hub_data import PREVIEW_BYTES, Location, choose, parts_of
from speculoos.errors import BadInput, Unsupported
from tests.models.hub_client import HubClient
from tests.models.test_fetch import hub  # noqa: F401

pytestmark = pytest.mark.integration

CLONE = Path(__file__).parents[2]
FETCH = """
from pathlib import Path
from models.hub_data import Location, fetch, look_up
from speculoos.reporting import SilentReporter
def work(location, folder, token, most):
    listing = look_up(Location.parse(location), token)
    told = {"files": [*listing.files], "revision": listing.revision, "size": listing.size}
    files = fetch(listing, Path(folder), SilentReporter(), token)
    told["rows"] = [path.read_bytes().count(b"\\n") for _, path in zip(range(most), files)]
    return told
"""


@pytest.fixture(scope="module")
def client(hub: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:  # noqa: F811
    with HubClient(FETCH, hub, tmp_path_factory.mktemp("client")) as process:
        yield process


def fetched(client: HubClient, location: str, folder: Path, token: str = "", max_files: int = 9) -> dict:
    result = client.ask(location, folder, token, max_files)
    assert token not in json.dumps(result) + client.said or not token
    return result


LOOK = """
import json, sys
from models import hub_data
from speculoos.errors import SpeculoosError
told = []
for text in sys.argv[1:]:
    try:
        name, content = hub_data.beginning(hub_data.look_up(hub_data.Location.parse(text)))
        told.append([name, len(content), content[:4].decode()])
    except SpeculoosError as error:
        told.append(str(error))
    hub_data.LARGEST_LOOK = 100  # from the second on
print(json.dumps(told))
"""


def test_the_beginning_of_the_first_file_is_fetched_and_of_parquet_all(hub: str, tmp_path: Path) -> None:  # noqa: F811
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    locations = ["hub:tests/tables", "hub:tests/long", "hub:tests/chats", "hub:tests/tables", "hub:tests/parts"]
    process = subprocess.run(
        [sys.executable, "-c", LOOK, *locations], env=env, cwd=CLONE, capture_output=True, text=True, timeout=240
    )
    assert process.returncode == 0, process.stderr
    parquet, long, chats, large, ambiguous = json.loads(process.stdout.splitlines()[-1])
    assert parquet[0].endswith(".parquet") and parquet[2] == "PAR1"
    assert long == ["rows.jsonl", PREVIEW_BYTES, '{"me']
    assert chats[0] == "data/train-00000-of-00002.jsonl" and chats[1] < 1000
    assert "too large for a preview" in large and "Max rows" in large
    assert "several parts" in ambiguous


def names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts
    }


def test_the_shards_of_a_split_arrive_in_order_and_no_code(client: HubClient, tmp_path: Path) -> None:
    result = fetched(client, "hub:tests/chats", tmp_path / "a")
    shards = [f"data/train-0000{n}-of-00002.jsonl" for n in (0, 1)]
    assert result["files"] == shards and result["rows"] == [3, 2] and result["revision"].startswith("0123")
    assert names(tmp_path / "a") == set(shards)
    assert fetched(client, "tests/chats:test", tmp_path / "b")["rows"] == [1]


def test_files_are_fetched_on_demand_and_kept_for_the_next_call(client: HubClient, tmp_path: Path) -> None:
    assert fetched(client, "hub:tests/chats", tmp_path / "a", max_files=1)["rows"] == [3]
    (first,) = names(tmp_path / "a")
    before = (tmp_path / "a" / first).stat().st_mtime_ns
    assert fetched(client, "hub:tests/chats", tmp_path / "a")["rows"] == [3, 2]
    assert (tmp_path / "a" / first).stat().st_mtime_ns == before


def test_a_private_set_opens_with_the_token(client: HubClient, tmp_path: Path) -> None:
    refused = fetched(client, "hub:tests/private", tmp_path / "a", token="hf_wrong")
    assert "no dataset 'tests/private'" in refused["says"] and "HF_TOKEN" in refused["says"]
    assert fetched(client, "hub:tests/private", tmp_path / "a", token="hf_right")["files"] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ("hub:tests/nowhere", "NotFound", "no dataset 'tests/nowhere'"),
        ("hub:tests/scripts", "Unsupported", "dataset scripts are never run"),
        ("hub:tests/chats:dev", "BadInput", "no part 'dev'; there are test, train"),
        ("hub:tests/parts", "BadInput", "several parts, easy/test, easy/train, hard/test, hard/train; choose one"),
        ("hub:tests/parts:train", "BadInput", "'train' may be easy/train, hard/train"),
        ("hub:tests/torn", "Unavailable", "sha256 differs"),
        ("hub:tests/strange", "Unavailable", "the hub's response is not a list of files"),
    ],
)
def test_datasets_that_cannot_be_fetched_are_refused(
    client: HubClient, tmp_path: Path, location: str, error: str, message: str
) -> None:
    result = fetched(client, location, tmp_path / "a")
    assert result["error"] == error and message in result["says"]
    assert not (tmp_path / "a").exists() or names(tmp_path / "a") == set()


def test_offline_and_unreachable_hubs_are_reported_in_a_sentence(tmp_path: Path) -> None:
    for offline, message in ((False, "the hub cannot be reached"), (True, "not used while HF_HUB_OFFLINE is set")):
        with HubClient(FETCH, "http://127.0.0.1:9", tmp_path / f"{offline}", offline) as client:
            result = fetched(client, "hub:tests/chats", tmp_path / "a")
        assert result["error"] == "Unavailable" and message in result["says"]
        assert len(result["says"].strip().splitlines()) == 1


SLOW = """
import json, sys
from models import hub_data
from speculoos.errors import Unavailable
hub_data.TIMEOUT, hub_data.MAX_LISTING_BYTES = float(sys.argv.pop(1)), 8 << 20
told = []
for name in sys.argv[1:]:
    try:
        hub_data.look_up(hub_data.Location.parse(name))
    except Unavailable as error:
        told.append(str(error))
print(json.dumps(told))
"""


def test_a_response_that_never_ends_is_limited_in_total_time(hub: str, tmp_path: Path) -> None:  # noqa: F811
    """The response drips, so a timeout between two reads would never expire."""
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    names = ["hub:slow/drip", "hub:slow/silent"]
    process = subprocess.run(
        [sys.executable, "-c", SLOW, "1", *names], env=env, cwd=CLONE, capture_output=True, text=True, timeout=240
    )
    assert process.returncode == 0, process.stderr
    for name, message in zip(names, json.loads(process.stdout.splitlines()[-1]), strict=True):
        assert message.startswith(f"{name.removeprefix('hub:')}: the hub did not answer within 1 seconds"), message


def test_torn_deep_huge_and_failed_responses_are_reported(hub: str, tmp_path: Path) -> None:  # noqa: F811
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    expected = {"torn": "a list", "deep": "a list", "huge": "larger than 8 MB", "down": "status 503"}
    command = [sys.executable, "-c", SLOW, "60", *(f"hub:ill/{name}" for name in expected)]
    process = subprocess.run(command, env=env, cwd=CLONE, capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stderr
    errors = json.loads(process.stdout.splitlines()[-1])
    assert len(errors) == len(expected) and all(
        message in error for message, error in zip(expected.values(), errors, strict=True)
    )


@pytest.mark.parametrize(
    "location", ["hub:", "hub:../x", "hub:a/b/c", "hub:a/b:x\ny", "hub:a/b@:train", "hub:a/b:" + "x" * 300]
)
def test_an_invalid_location_is_refused_before_any_request(location: str) -> None:
    with pytest.raises(BadInput, match="is not a"):
        Location.parse(location)


def test_a_location_is_read_as_people_write_it() -> None:
    assert Location.parse("hub:owner/name@v1.0:all/train") == Location("owner/name", "v1.0", "all/train")
    assert str(Location.parse(" https://huggingface.co/datasets/owner/name ")) == "hub:owner/name"
    assert Location.parse("owner/name:train").title == "owner/name:train"


def named(*files: str) -> Files:
    return {file: (1, "") for file in files}


def test_files_are_put_together_by_their_part() -> None:
    files = named("data/train_sft-00000-of-00002-0a1b2c3d.parquet", "data/train_sft-00001-of-00002-aa1b2c3d.parquet")
    files |= named("default/test/0000.parquet", "default/test/0001.parquet", "all/dev-00000-of-00001.parquet")
    parts = {part: len(members) for part, members in parts_of(files, (".parquet",)).items()}
    assert parts == {"train_sft": 2, "default/test": 2, "all/dev": 1}


def test_parquet_comes_before_jsonl_and_that_before_json() -> None:
    location = Location("a/b")
    files = named("train.json", "train.jsonl", "train.parquet", "run.py", "train.csv", "weights.bin", "state.json")
    assert [*choose(location, files)] == ["train.parquet"]
    assert [*choose(location, named("train.json", "train.jsonl", "config.json"))] == ["train.jsonl"]
    assert [*choose(location, named("chats.json", "dataset_infos.json"))] == ["chats.json"]
    assert [*choose(Location("a/b", part="extra"), files | named("extra.jsonl"))] == ["extra.jsonl"]
    with pytest.raises(Unsupported, match="1,001 files; at most 1,000"):
        choose(location, named(*(f"train-{n:05d}-of-01001.parquet" for n in range(1001))))
