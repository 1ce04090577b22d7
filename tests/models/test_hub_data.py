"""Datasets on the hub: which files are taken, what is said where none can be, and fetching them one by one.

Against tests/models/hub_server.py, in processes of their own: the hub's library reads its address at import.
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
    with HubClient(FETCH, hub, tmp_path_factory.mktemp("client")) as made:
        yield made


def fetched(client: HubClient, location: str, folder: Path, token: str = "", most: int = 9) -> dict:
    made = client.ask(location, folder, token, most)
    assert token not in json.dumps(made) + client.said or not token
    return made


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
    words = ["hub:tests/tables", "hub:tests/long", "hub:tests/chats", "hub:tests/tables", "hub:tests/parts"]
    made = subprocess.run(
        [sys.executable, "-c", LOOK, *words], env=env, cwd=CLONE, capture_output=True, text=True, timeout=240
    )
    assert made.returncode == 0, made.stderr
    parquet, long, chats, large, unclear = json.loads(made.stdout.splitlines()[-1])
    assert parquet[0].endswith(".parquet") and parquet[2] == "PAR1"
    assert long == ["rows.jsonl", PREVIEW_BYTES, '{"me']
    assert chats[0] == "data/train-00000-of-00002.jsonl" and chats[1] < 1000
    assert "too large for a preview" in large and "Max rows" in large
    assert "several parts" in unclear


def names(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts
    }


def test_the_shards_of_a_split_arrive_in_order_and_no_code(client: HubClient, tmp_path: Path) -> None:
    made = fetched(client, "hub:tests/chats", tmp_path / "a")
    shards = [f"data/train-0000{n}-of-00002.jsonl" for n in (0, 1)]
    assert made["files"] == shards and made["rows"] == [3, 2] and made["revision"].startswith("0123")
    assert names(tmp_path / "a") == set(shards)
    assert fetched(client, "tests/chats:test", tmp_path / "b")["rows"] == [1]


def test_files_are_fetched_when_they_are_asked_for_and_kept_for_the_next_call(
    client: HubClient, tmp_path: Path
) -> None:
    assert fetched(client, "hub:tests/chats", tmp_path / "a", most=1)["rows"] == [3]
    (first,) = names(tmp_path / "a")
    before = (tmp_path / "a" / first).stat().st_mtime_ns
    assert fetched(client, "hub:tests/chats", tmp_path / "a")["rows"] == [3, 2]
    assert (tmp_path / "a" / first).stat().st_mtime_ns == before


def test_a_private_set_opens_with_the_token(client: HubClient, tmp_path: Path) -> None:
    refused = fetched(client, "hub:tests/private", tmp_path / "a", token="hf_wrong")
    assert "no dataset 'tests/private'" in refused["says"] and "HF_TOKEN" in refused["says"]
    assert fetched(client, "hub:tests/private", tmp_path / "a", token="hf_right")["files"] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("location", "error", "says"),
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
def test_what_the_hub_cannot_give_is_told(
    client: HubClient, tmp_path: Path, location: str, error: str, says: str
) -> None:
    made = fetched(client, location, tmp_path / "a")
    assert made["error"] == error and says in made["says"]
    assert not (tmp_path / "a").exists() or names(tmp_path / "a") == set()


def test_offline_and_unreachable_hubs_are_told_in_a_sentence(tmp_path: Path) -> None:
    for offline, says in ((False, "the hub cannot be reached"), (True, "not used while HF_HUB_OFFLINE is set")):
        with HubClient(FETCH, "http://127.0.0.1:9", tmp_path / f"{offline}", offline) as client:
            made = fetched(client, "hub:tests/chats", tmp_path / "a")
        assert made["error"] == "Unavailable" and says in made["says"]
        assert len(made["says"].strip().splitlines()) == 1


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


def test_a_hub_that_never_ends_its_answer_is_waited_for_so_long_in_all(hub: str, tmp_path: Path) -> None:  # noqa: F811
    """A space now and then keeps any limit between two reads away."""
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    names = ["hub:slow/drip", "hub:slow/silent"]
    made = subprocess.run(
        [sys.executable, "-c", SLOW, "1", *names], env=env, cwd=CLONE, capture_output=True, text=True, timeout=240
    )
    assert made.returncode == 0, made.stderr
    for name, says in zip(names, json.loads(made.stdout.splitlines()[-1]), strict=True):
        assert says.startswith(f"{name.removeprefix('hub:')}: the hub did not answer within 1 seconds"), says


def test_torn_deep_huge_and_failed_answers_are_told(hub: str, tmp_path: Path) -> None:  # noqa: F811
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    says = {"torn": "a list", "deep": "a list", "huge": "larger than 8 MB", "down": "status 503"}
    command = [sys.executable, "-c", SLOW, "60", *(f"hub:ill/{name}" for name in says)]
    made = subprocess.run(command, env=env, cwd=CLONE, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout.splitlines()[-1])
    assert len(told) == len(says) and all(words in said for words, said in zip(says.values(), told, strict=True))


@pytest.mark.parametrize(
    "location", ["hub:", "hub:../x", "hub:a/b/c", "hub:a/b:x\ny", "hub:a/b@:train", "hub:a/b:" + "x" * 300]
)
def test_what_is_no_data_set_is_refused_before_any_request(location: str) -> None:
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
    parts = {part: len(those) for part, those in parts_of(files, (".parquet",)).items()}
    assert parts == {"train_sft": 2, "default/test": 2, "all/dev": 1}


def test_parquet_comes_before_jsonl_and_that_before_json() -> None:
    location = Location("a/b")
    every = named("train.json", "train.jsonl", "train.parquet", "run.py", "train.csv", "weights.bin", "state.json")
    assert [*choose(location, every)] == ["train.parquet"]
    assert [*choose(location, named("train.json", "train.jsonl", "config.json"))] == ["train.jsonl"]
    assert [*choose(location, named("chats.json", "dataset_infos.json"))] == ["chats.json"]
    assert [*choose(Location("a/b", part="extra"), every | named("extra.jsonl"))] == ["extra.jsonl"]
    with pytest.raises(Unsupported, match="1,001 files; at most 1,000"):
        choose(location, named(*(f"train-{n:05d}-of-01001.parquet" for n in range(1001))))
