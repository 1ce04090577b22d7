"""The real import refuses foreign models that never finish, exhaust memory or are malformed, in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import trial
from models.fetch import fetch_base
from speculoos.errors import BadInput, SpeculoosError, Unsupported
from speculoos.reporting import SilentReporter
from tests.models import hostile
from tests.models.gguf_file import write_gguf
from tests.tiny import CHATML, make_tiny_base

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tiny_base: Path, tmp_path: Path) -> Path:
    return hostile.copy(tiny_base, tmp_path / "copy")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Set the time limit of a text or a template: 1 s if it never ends, 90 s if memory must run out first."""

    def set_for(message: str, name: str) -> None:
        monkeypatch.setattr(trial, name, 1 if "did not end" in message else 90)

    return set_for


def imported(folder: Path) -> dict[str, Any]:
    return fetch_base("folder", str(folder), folder.parent / "unused", SilentReporter())[1]


def check_refused(folder: Path, message: str) -> None:
    with pytest.raises((BadInput, Unsupported), match=message) as error:
        imported(folder)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (hostile.ENDLESS, "did not end within 1 s"),
        ("{{ 'a' * 10**11 }}", "exceeded its memory limit"),
        ("{{ 1 + 'a' }}", "failed .TypeError"),
        ("{{ messages[0].nothing.more }}", "failed .Refusal"),
    ],
    ids=["endless", "memory", "type", "undefined"],
)
def test_a_chat_template_that_cannot_be_rendered_is_refused(
    folder: Path, template: str, message: str, limit: Callable[[str, str], None]
) -> None:
    limit(message, "TEMPLATE_SECONDS")
    (folder / "chat_template.jinja").write_text(template)
    check_refused(folder, rf"chat_template\.jinja: rendering a chat {message}.*; correct the chat template")


def test_a_template_may_refuse_a_system_text(folder: Path) -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('none here') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusal + CHATML)
    assert imported(folder)["chat_template"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("a{0,2000}a{0,2000}b", "did not end within 1 s"), ("(a+)+$", "PanicException")],
)
def test_a_catastrophic_regular_expression_is_refused(
    folder: Path, pattern: str, message: str, limit: Callable[[str, str], None]
) -> None:
    limit(message, "TEXT_SECONDS")
    hostile.split_by(folder, pattern)
    check_refused(
        folder, rf"tokenizer\.json: turning texts into tokens .*{message}.* pattern or normalizer is at fault"
    )


def test_a_tokenizer_that_eats_memory_is_refused(folder: Path, limit: Callable[[str, str], None]) -> None:
    limit("", "TEXT_SECONDS")
    check_refused(hostile.growing(folder), r"tokenizer\.json: .* exceeded its memory limit")


def test_a_model_that_eats_memory_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path / "gptj", "gptj", rotary_dim=8, num_hidden_layers=2)
    assert imported(folder)["layers"] == 2
    hostile.put(folder, "config.json", n_positions=10**8)  # a table of positions without a weight
    check_refused(folder, r"config\.json: loading the model exceeded its memory limit; a size in it")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    def add(value: dict[str, Any]) -> None:
        value["added_tokens"].append({**value["added_tokens"][0], "id": 5000, "content": "fox"})

    hostile.edit(folder / "tokenizer.json", add)
    check_refused(folder, r"tokenizer\.json gives token ids up to \d+, the weights have 320 tokens")


def test_families_that_cannot_be_a_base_are_refused(folder: Path) -> None:
    hostile.put(folder, "config.json", model_type="t5", architectures=["T5ForConditionalGeneration"])
    check_refused(folder, "'t5' models are not decoder-only text models")


def test_a_gguf_file_is_converted_and_tried_in_the_child(tiny_base: Path, tmp_path: Path) -> None:
    file = write_gguf(tiny_base, tmp_path / "tiny.gguf")
    data = file.read_bytes()
    for number, at in enumerate(range(24, min(len(data), 3000), 379)):
        damaged = tmp_path / f"{number}.gguf"
        damaged.write_bytes(data[:at] + bytes(255 - byte for byte in data[at : at + 16]) + data[at + 16 :])
        try:
            fetch_base("gguf", str(damaged), tmp_path / f"made-{number}", SilentReporter())
        except SpeculoosError as error:
            assert "\n" not in str(error)
            assert not [p for p in tmp_path.iterdir() if f"made-{number}" in p.name]


@pytest.mark.parametrize("value", [[1], None, {}, {"model_type": 5}])
def test_a_json_file_of_another_shape_is_refused(folder: Path, value: Any) -> None:
    (folder / "config.json").write_text(json.dumps(value))
    check_refused(folder, "config.json")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, "lists '../model.safetensors', which is not a safetensors"),
        ({"weight_map": {"a": "/etc/passwd"}}, "lists '/etc/passwd', which is not a"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "lists 'pytorch_model.bin', which is not a safetensors file"),
        ({"weight_map": {"a": "lost.safetensors"}}, "lists lost.safetensors, which is missing"),
        ({"weight_map": ["model.safetensors"]}, "weight_map: expected an object"),
        ({"weight_map": {"a": 5}}, "weight_map: expected an object"),
        ([1], "expected a JSON object, found a list"),
        ({}, "weight_map: expected an object"),
    ],
)
def test_an_index_with_wrong_file_names_is_refused(folder: Path, index: Any, message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_refused(folder, rf"model\.safetensors\.index\.json: {message}")


NAMES = ("config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json", "special_tokens_map.json")
KEYS = (
    *("model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("text_config", "rope_parameters", "dtype", "eos_token_id", "bos_token_id", "hidden_act", "tie_word_embeddings"),
    *("max_position_embeddings", "layer_types", "chat_template", "tokenizer_class", "added_tokens_decoder", "model"),
    *("pre_tokenizer", "normalizer", "decoder", "added_tokens", "extra_special_tokens", "model_max_length", "head_dim"),
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
MANY = {"max_size": 3}
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, **MANY) | st.dictionaries(st.sampled_from(KEYS), inner, **MANY),
    max_leaves=8,
)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(NAMES), key=st.sampled_from(KEYS), value=VALUES, whole=st.booleans())
def test_any_content_is_imported_or_refused_in_one_sentence(
    tiny_base: Path, tmp_path_factory: pytest.TempPathFactory, name: str, key: str, value: Any, whole: bool
) -> None:
    folder = hostile.copy(tiny_base, tmp_path_factory.mktemp("shapes") / "copy")
    if whole:
        (folder / name).write_text(json.dumps(value))
    else:
        hostile.put(folder, name, **{key: value})
    try:
        imported(folder)
    except SpeculoosError as error:
        assert isinstance(error, BadInput | Unsupported) and len(str(error)) < 1000
        assert "\n" not in str(error)
