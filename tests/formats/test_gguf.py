"""GGUF files: the contents that llama.cpp expects, base models read back by transformers, and llama.cpp itself."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from formats.export import build_export
from formats.gguf_files import base_reason, write_base
from formats.gguf_readers import draft_gguf
from formats.gguf_tokenizer import PATTERNS, tokenizer_keys, tokenizer_reason
from models.base import load_base
from speculoos.errors import BadInput, Cancelled, Conflict, Damaged, Unsupported
from speculoos.reporting import SilentReporter
from tests.tiny import FAMILIES, TEXT, make_tiny_base

WRITTEN = ("llama", "llama3", "mistral", "qwen2", "qwen3", "phi3")
TEXTS = (
    "def f(x):\n    return x**2  # 12345 67.8\n\n\n\tif a==b:\n",
    "Grüße aus Köln, Straße 12! Ärger",
    "今天天气很好，我们去公园 3年级",
    "🚀 hello 👩‍👩‍👧 ✅🇩🇪",
    "it's we'LL I've don't '90s",
    "  leading and   trailing   ",
    "e = 3.14159265358979\r\n1000000",
    "<|im_start|>user\nhi<|im_end|>\n",
)


def family(folder: Path, name: str, **changes) -> Path:
    kind, options = FAMILIES[name]
    plain = {"use_sliding_window": False} if name == "qwen3" else {}
    if name == "phi3":
        plain = {"original_max_position_embeddings": 512, "eos_token_id": 2, "bos_token_id": 1}
    return make_tiny_base(folder, kind, **{**options, **plain, **changes})


def keys_of(file: Path) -> dict:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


@pytest.mark.parametrize("name", WRITTEN)
def test_transformers_reads_back_the_base_model(name, tmp_path):
    folder = family(tmp_path / "base", name)
    file = write_base(folder, tmp_path / "out" / "base.gguf", "f32")
    model = draft_gguf(file.parent, None)
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
    ids = torch.tensor([[5, 60, 100, 33, 44, 120, 200, 9, 10, 11, 12]])
    with torch.no_grad():
        expected, logits = load_base(folder, "float32").model(ids).logits, model(ids).logits
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert ("output.weight" in stored) == (not FAMILIES[name][1].get("tie_word_embeddings"))
    keys = keys_of(file)
    architecture = keys["general.architecture"]
    window = FAMILIES[name][1].get("sliding_window") if name in ("mistral", "phi3") else None
    assert keys[f"{architecture}.context_length"] == (window or 512)


@pytest.mark.parametrize(("kind", "dtype"), [("f16", torch.float32), ("q8_0", torch.bfloat16), ("q4_1", torch.float16)])
def test_matrices_are_rounded_and_vectors_are_not(kind, dtype, tmp_path):
    folder = make_tiny_base(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.save_pretrained(folder)
    reader = gguf.GGUFReader(write_base(folder, tmp_path / "base.gguf", kind))
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["blk.0.attn_norm.weight"] == "F32" and types["blk.0.ffn_up.weight"] == kind.upper()
    assert types["token_embd.weight"] == ("Q8_0" if kind == "q4_1" else kind.upper())
    up = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.weight")
    stored = torch.tensor(gguf.quants.dequantize(up.data, up.tensor_type))
    exact = model.model.layers[0].mlp.up_proj.weight.float()
    assert (stored - exact).abs().max() <= exact.abs().max() / {"f16": 2000, "q8_0": 250, "q4_1": 13}[kind]


def test_a_model_that_cannot_be_written_is_refused_in_one_sentence(tmp_path):
    assert "not phi; convert it with llama.cpp's convert_hf_to_gguf.py" in base_reason(family(tmp_path / "phi", "phi"))
    mixed = family(tmp_path / "mixed", "qwen2-mixed")
    with pytest.raises(Unsupported, match="use_sliding_window"):
        write_base(mixed, tmp_path / "x.gguf")
    llama = make_tiny_base(tmp_path / "llama")
    with pytest.raises(BadInput, match="expected one of f32, f16, q8_0, q4_1"):
        write_base(llama, tmp_path / "x.gguf", "q2")
    config = json.loads((llama / "config.json").read_text())
    for change, message in (
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope scaling dynamic"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "quantized"),
    ):
        (llama / "config.json").write_text(json.dumps(config | change))
        assert message in base_reason(llama)
    (llama / "config.json").write_text(json.dumps(config))
    (llama / "tokenizer.json").unlink()
    assert "no tokenizer.json" in base_reason(llama)
    assert not (tmp_path / "x.gguf").exists()


def test_a_file_is_complete_or_not_there(tmp_path):
    folder = make_tiny_base(tmp_path / "base")

    class Stopped(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    with pytest.raises(Cancelled):
        write_base(folder, tmp_path / "out" / "x.gguf", reporter=Stopped())
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e5
    model.save_pretrained(folder)
    with pytest.raises(Unsupported, match="blk.0.ffn_up.weight: has values that are too large for F16"):
        write_base(folder, tmp_path / "out" / "x.gguf")
    assert not [*(tmp_path / "out").iterdir()]
    write_base(folder, tmp_path / "out" / "x.gguf", "f32")
    with pytest.raises(Conflict, match="already exists"):
        write_base(folder, tmp_path / "out" / "x.gguf", "f32")


def test_a_truncated_source_is_damage(tmp_path):
    from formats.gguf_files import write_gguf
    from formats.plan import ExportPlan, constant

    plan = ExportPlan([constant("a", "F32", (4,), bytes(12))], {"general.architecture": "llama"})
    with pytest.raises(Damaged, match="a: 12 of 16 bytes"):
        write_gguf(tmp_path / "x.gguf", plan, lambda _: None)


def split(pattern: str):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def saved(folder: Path, tokenizer: Tokenizer, trainer: trainers.BpeTrainer) -> Path:
    tokenizer.train_from_iterator([*TEXT, *TEXTS] * 2, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)
    return folder


def byte_level(folder: Path, steps, ignore_merges: bool = False) -> Path:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = steps, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    return saved(folder, tokenizer, trainer)


def sentencepiece(folder: Path) -> Path:
    """Like Llama 2's: a leading space, bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, limit_alphabet=60, show_progress=False, max_token_length=8
    )
    saved(folder, tokenizer, trainer)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


DIGITS = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
KINDS = {
    "gpt-2": lambda folder: byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda folder: byte_level(folder, DIGITS),
    "llama-bpe": lambda folder: byte_level(folder, split(pattern("dbrx")), ignore_merges=True),
    "dbrx": lambda folder: byte_level(folder, split(pattern("dbrx"))),
    "qwen2": lambda folder: byte_level(folder, split(pattern("qwen2"))),
    "tekken": lambda folder: byte_level(folder, split(pattern("tekken")), ignore_merges=True),
    "gpt-4o": lambda folder: byte_level(folder, split(pattern("gpt-4o"))),
    "default": sentencepiece,
}
"""{`tokenizer.ggml.pre`: a tokenizer of this kind}."""


def pattern(name: str) -> str:
    return next(regex for regex, pre in PATTERNS.items() if pre == name)


@pytest.mark.parametrize("pre", KINDS)
def test_the_name_of_a_pre_tokenizer_is_found(pre, tmp_path):
    keys = tokenizer_keys(KINDS[pre](tmp_path), 520)
    kind = "llama" if pre == "default" else "gpt2"
    assert keys["tokenizer.ggml.pre"] == pre and keys["tokenizer.ggml.model"] == kind
    assert keys["tokenizer.ggml.bos_token_id"] == 1 and keys["tokenizer.ggml.eos_token_id"] == 2
    assert not keys["tokenizer.ggml.add_bos_token"]
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 520 and tokens[-1] == "[PAD519]" and types[-1] == 5
    assert types[1] == 3, "<s> is a control token"
    if kind == "llama":
        assert types[0] == 2 and types[tokens.index("<0x0A>")] == 6 and keys["tokenizer.ggml.add_space_prefix"]
        scores = keys["tokenizer.ggml.scores"]
        assert max(scores) == 0.0 and scores[tokens.index("<0x0A>")] == min(scores) < -100
    with pytest.raises(Unsupported, match="has no embedding"):
        tokenizer_keys(tmp_path, 100)


def test_an_unknown_tokenizer_is_refused(tmp_path):
    byte_level(tmp_path / "a", split(r"\w+|\W+"))
    assert "convert_hf_to_gguf.py" in tokenizer_reason(tmp_path / "a")
    byte_level(tmp_path / "b", pre_tokenizers.ByteLevel(add_prefix_space=True))
    assert "convert_hf_to_gguf.py" in tokenizer_reason(tmp_path / "b")
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    (tmp_path / "c").mkdir()
    tokenizer.save(str(tmp_path / "c" / "tokenizer.json"))
    assert "WordLevel" in tokenizer_reason(tmp_path / "c")


@pytest.mark.parametrize("kind", ["eagle3", "eagle3-small", "eagle3-residual", "eagle3-narrow"])
def test_an_eagle3_file_is_what_the_loader_wants(kind, base, checkpoint, tmp_path):
    """As in llama.cpp's src/models/eagle3.cpp: shapes are [columns, rows]."""
    assert build_export(checkpoint(kind), base, "gguf-f16", tmp_path / "out").passed
    reader = gguf.GGUFReader(tmp_path / "out" / "draft-f16.gguf")
    tensors = {t.name: (tuple(map(int, t.shape)), t.tensor_type.name) for t in reader.tensors}
    hidden, target, rows = (16 if kind == "eagle3-narrow" else 32), 32, 200 if kind != "eagle3" else base.vocab_size
    narrow = {"token_embd.weight": ((hidden, base.vocab_size), "F16")} if kind == "eagle3-narrow" else {}
    mapped = {"d2t": ((rows,), "I64")} if kind != "eagle3" else {}
    width = tensors["blk.0.attn_q.weight"][0][1]
    assert tensors == {
        "fc.weight": ((3 * target, hidden), "F16"),
        "output_norm.weight": ((hidden,), "F32"),
        "output.weight": ((hidden, rows), "F16"),
        **{f"blk.0.{name}.weight": ((hidden,), "F32") for name in ("attn_norm", "attn_norm_2", "ffn_norm")},
        "blk.0.attn_q.weight": ((2 * hidden, width), "F16"),
        **{f"blk.0.attn_{name}.weight": ((2 * hidden, width // 2), "F16") for name in "kv"},
        "blk.0.attn_output.weight": ((width, hidden), "F16"),
        **{f"blk.0.ffn_{name}.weight": ((hidden, 64), "F16") for name in ("gate", "up")},
        "blk.0.ffn_down.weight": ((64, hidden), "F16"),
        **mapped,
        **narrow,
    }
    keys = keys_of(tmp_path / "out" / "draft-f16.gguf")
    inputs = [1, 3, 7] if kind == "eagle3-small" else [2, 4, 5]
    assert keys["general.architecture"] == "eagle3" and keys["eagle3.block_count"] == 1
    assert keys["eagle3.target_layers"] == keys["eagle3.extract_layers"] == inputs
    assert keys["eagle3.target_hidden_size"] == target and keys["eagle3.embedding_length"] == hidden
    assert keys["eagle3.norm_before_residual"] is (kind == "eagle3-residual")
    assert len(keys["tokenizer.ggml.tokens"]) == base.vocab_size
    if mapped:
        d2t = next(t for t in reader.tensors if t.name == "d2t").data
        assert np.array_equal(np.asarray(d2t), np.arange(5, 205))
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "--model-draft ./out/draft-f16.gguf --spec-type draft-eagle3 --spec-draft-n-max 3" in readme


@pytest.mark.parametrize(
    ("kind", "name"), [("eagle3-small", "gguf-q8_0"), ("draft", "gguf-f16"), ("draft", "gguf-q8_0")]
)
def test_a_rounded_draft_is_compared_with_its_weights(kind, name, base, checkpoint, tmp_path):
    report = build_export(checkpoint(kind, "bfloat16"), base, name, tmp_path / "out")
    assert report.passed and [check.name for check in report.checks] == ["base", "weights", "logits", "tokens"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(f"draft-{name.removeprefix('gguf-')}.gguf", "README.md", "validation.json", "SHA256SUMS")
    }


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("blk.0.attn_q.weight", lambda data: data[::-1].copy(), "logits: largest difference"),
        ("blk.0.ffn_up.weight", lambda data: data * 0.5, "logits: largest difference"),
        ("d2t", lambda data: data[::-1].copy(), "tokens: from position"),
    ],
)
def test_a_damaged_file_fails(tensor, change, message, base, checkpoint, tmp_path):
    from formats import find_format
    from formats.checkpoint import CheckpointFiles
    from formats.export import validate
    from formats.facts import CardFacts

    folder = checkpoint("eagle3-small")
    build_export(folder, base, "gguf", tmp_path / "out")
    writable = gguf.GGUFReader(tmp_path / "out" / "draft-f32.gguf", "r+")
    data = next(t for t in writable.tensors if t.name == tensor).data
    data[:] = change(np.array(data))
    data.flush()
    files = CheckpointFiles.read(folder, base.path)
    report = validate(
        tmp_path / "out", find_format("gguf"), files, base, CardFacts("tiny", str(base.path)), SilentReporter()
    )
    assert message in " ".join(report.failures)


def test_the_command_writes_a_base_model(tmp_path, monkeypatch, capsys):
    from cli.main import main

    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    folder = make_tiny_base(tmp_path / "base")
    command = ["models", "gguf", str(folder), "--out", str(tmp_path / "base.gguf"), "--type", "q8_0", "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result == {
        "path": str(tmp_path / "base.gguf"),
        "type": "q8_0",
        "bytes": (tmp_path / "base.gguf").stat().st_size,
    }
    assert main(command) != 0


SERVE = """
import sys, xllamacpp
base, draft, kind = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = base, ["127.0.0.1"], 0
params.n_parallel, params.n_ctx, params.warmup = 1, 512, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
if draft:
    params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    params.speculative.draft.mparams.path, params.speculative.draft.n_max = draft, 3
server = xllamacpp.Server(params)
print("READY", server.listening_address, flush=True)
sys.stdin.read()
"""


class Server:
    """llama.cpp's server with a base model and perhaps a draft, in its own process."""

    def __init__(self, base: Path, draft: Path | str = "", kind: str = "EAGLE3"):
        command = [sys.executable, "-c", SERVE, str(base), str(draft), f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = next((line for line in self.process.stdout if line.startswith("READY")), "")
        assert line, "llama.cpp refused the files"
        self.url = line.split()[1]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def __call__(self, path: str, **fields) -> dict:
        request = urllib.request.Request(
            self.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request, timeout=60))


@pytest.mark.parametrize("pre", KINDS)
def test_llamacpp_has_the_same_tokens(pre, tmp_path):
    folder = make_tiny_base(tmp_path / "base", vocab_size=512)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    KINDS[pre](folder)
    from models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    with Server(write_base(folder, tmp_path / "base.gguf")) as server:
        for text in TEXTS:
            expected = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert server("/tokenize", content=text, add_special=False)["tokens"] == expected, text


@pytest.mark.parametrize("name", WRITTEN)
def test_llamacpp_generates_the_same(name, tmp_path):
    folder = family(tmp_path / "base", name)
    ids = [5, 60, 100, 33, 44, 120, 200]
    model = load_base(folder, "float32").model
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    with Server(write_base(folder, tmp_path / "base.gguf", "f32")) as server:
        options = {"n_predict": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        assert server("/completion", prompt=ids, **options)["tokens"] == expected[0, len(ids) :].tolist()


REQUEST = {"n_predict": 24, "temperature": 0, "return_tokens": True, "ignore_eos": True, "prompt": [5, 60, 100, 33]}


@pytest.fixture(scope="module")
def plain(base, tmp_path_factory):
    """The base as a GGUF file, and the tokens that llama.cpp generates without a draft."""
    file = write_base(base.path, tmp_path_factory.mktemp("plain") / "base.gguf", "f32")
    with Server(file) as server:
        return file, server("/completion", **REQUEST)["tokens"]


@pytest.mark.parametrize("name", ["gguf", "gguf-f16", "gguf-q8_0"])
@pytest.mark.parametrize(
    "kind", ["eagle3", "eagle3-small", "eagle3-residual", "eagle3-narrow", "eagle3-scaled", "draft"]
)
def test_llamacpp_loads_the_draft_and_answers_the_same(kind, name, base, plain, checkpoint, tmp_path):
    build_export(checkpoint(kind), base, name, tmp_path / "out")
    file, tokens = plain
    draft = next((tmp_path / "out").glob("*.gguf"))
    with Server(file, draft, "SIMPLE" if kind == "draft" else "EAGLE3") as server:
        drafted = server("/completion", **REQUEST)
    assert drafted["tokens"] == tokens and drafted["timings"]["draft_n"] > 0
    if kind == "draft":
        assert drafted["timings"]["draft_n_accepted"] > 0
