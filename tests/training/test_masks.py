"""Loss masks cover the answers with their end-of-turn tokens and nothing else, whatever the source."""

import json
import shutil

import pytest

from models.base import load_base, read_eos_ids
from speculoos.errors import BadInput, NotFound
from tests.training.conftest import write_dataset
from training.batches import collate, epoch_order, load_conversations, make_batches, split_held_out
from training.masks import mask_conversation
from training.tokenizing import preview

MARKED = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n'}}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{{'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TWO_TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the fox?"},
    {"role": "assistant", "content": "lazy dog"},
    {"role": "user", "content": "and 2?"},
    {"role": "assistant", "content": "3 + 1"},
]


def loss_texts(masked, tokenizer):
    """The texts of successive tokens in the loss."""
    texts, tokens = [], []
    for token, inside in zip([*masked.token_ids, 0], [*masked.mask, False], strict=True):
        if inside:
            tokens.append(token)
        elif tokens:
            texts.append(tokenizer.decode(tokens))
            tokens = []
    return texts


@pytest.mark.parametrize("marked", [True, False])
def test_messages_the_template_refuses_are_a_bad_row(base, monkeypatch, marked):
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    template = MARKED if marked else MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    monkeypatch.setattr(base.tokenizer, "chat_template", refusing + template)
    with pytest.raises(BadInput, match="the chat template refuses these messages .*no system here"):
        mask_conversation({"messages": TWO_TURNS}, base.tokenizer)
    assert any(mask_conversation({"messages": TWO_TURNS[1:]}, base.tokenizer).mask)


@pytest.mark.parametrize("marked", [True, False])
def test_answers_with_their_end_of_turn_and_nothing_else(base, monkeypatch, marked):
    if marked:
        monkeypatch.setattr(base.tokenizer, "chat_template", MARKED)
    masked = mask_conversation({"messages": TWO_TURNS}, base.tokenizer)
    assert loss_texts(masked, base.tokenizer) == ["lazy dog<|im_end|>", "3 + 1<|im_end|>"]
    assert masked.source == ("marks" if marked else "prefixes")


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (["stop", "stop"], ["lazy dog<|im_end|>", "3 + 1<|im_end|>"]),
        (["stop", "length"], ["lazy dog<|im_end|>", "3 + 1"]),
        (["length", "stop"], ["lazy dog", "3 + 1<|im_end|>"]),
    ],
)
def test_an_answer_that_a_limit_cut_teaches_no_end_of_turn(base, monkeypatch, marked, finish, expected):
    if marked:
        monkeypatch.setattr(base.tokenizer, "chat_template", MARKED)
    masked = mask_conversation({"messages": TWO_TURNS, "finish": finish}, base.tokenizer)
    assert loss_texts(masked, base.tokenizer) == expected


def test_a_cut_answer_without_a_template_teaches_no_end_of_text(base, monkeypatch):
    monkeypatch.setattr(base.tokenizer, "chat_template", None)
    row = {"messages": [{"role": "user", "content": "a fox"}, {"role": "assistant", "content": "lazy dog"}]}
    whole = mask_conversation({**row, "finish": ["stop"]}, base.tokenizer)
    cut = mask_conversation({**row, "finish": ["length"]}, base.tokenizer)
    assert whole.token_ids == [*cut.token_ids, base.tokenizer.eos_token_id] and all(cut.mask[-2:])


def test_stored_token_ids_win_over_text(base):
    row = {"messages": TWO_TURNS, "token_ids": [1, 2, 3, 4, 5], "loss_spans": [[2, 3], [4, 5]]}
    masked = mask_conversation(row, base.tokenizer)
    assert masked.mask == [False, False, True, False, True] and masked.source == "tokens"


def test_derived_mask_equals_the_stored_one(base, rows):
    for row in rows:
        if row["token_ids"][-1] in base.eos_ids:
            continue
        text_only = {"messages": [{"role": "user", "content": row["id"]}, {"role": "assistant", "content": "fox dog"}]}
        masked = mask_conversation(text_only, base.tokenizer)
        start = row["loss_spans"][0][0]
        assert masked.token_ids[:start] == row["token_ids"][:start]
        assert masked.mask.index(True) == start


@pytest.mark.parametrize("marked", [True, False])
def test_an_answer_without_a_question_brings_no_header_into_the_loss(base, monkeypatch, marked):
    if marked:
        monkeypatch.setattr(base.tokenizer, "chat_template", MARKED)
    messages = [{"role": "assistant", "content": "hello"}, *TWO_TURNS[1:3]]
    masked = mask_conversation({"messages": messages}, base.tokenizer)
    assert loss_texts(masked, base.tokenizer) == ["hello<|im_end|>"] * marked + ["lazy dog<|im_end|>"]


def test_a_template_that_drops_earlier_turns_leaves_them_out(base, monkeypatch):
    last_only = (
        "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n'}}"
        "{% if m['role'] == 'assistant' and not loop.last %}gone{% else %}{{ m['content'] }}{% endif %}"
        "{{'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    monkeypatch.setattr(base.tokenizer, "chat_template", last_only)
    masked = mask_conversation({"messages": TWO_TURNS}, base.tokenizer)
    assert loss_texts(masked, base.tokenizer) == ["3 + 1<|im_end|>"]


def test_a_base_without_a_template_takes_prompt_and_answer(base, monkeypatch):
    monkeypatch.setattr(base.tokenizer, "chat_template", None)
    masked = mask_conversation({"messages": TWO_TURNS[1:3]}, base.tokenizer)
    assert loss_texts(masked, base.tokenizer) == ["lazy dog<|im_end|>"]
    with pytest.raises(BadInput, match="no chat template"):
        mask_conversation({"messages": TWO_TURNS}, base.tokenizer)


def test_masks_of_all_ones_or_zeros_are_refused(base, tmp_path):
    whole = write_dataset(tmp_path / "ones", [{"id": "a", "token_ids": [1, 2], "loss_spans": [[0, 2]]}])
    with pytest.raises(BadInput, match="all tokens are in the loss"):
        load_conversations(whole, base.tokenizer, 64)
    empty = write_dataset(tmp_path / "zeros", [{"id": "a", "token_ids": [1, 2], "loss_spans": []}])
    with pytest.raises(BadInput, match="no response token is in the loss"):
        load_conversations(empty, base.tokenizer, 64)
    with pytest.raises(NotFound, match="shard-00000"):
        load_conversations(tmp_path, base.tokenizer, 64)


def test_truncation_and_dropped_rows_are_counted(base, tmp_path):
    rows = [
        {"id": "long", "token_ids": list(range(5, 25)), "loss_spans": [[4, 20]]},
        {"id": "cut off before its answer", "token_ids": list(range(5, 25)), "loss_spans": [[15, 20]]},
        {"id": "fine", "token_ids": [5, 6, 7], "loss_spans": [[1, 3]]},
        {"id": "no answer", "messages": [{"role": "user", "content": "?"}]},
        {"id": "bad span", "token_ids": [5, 6], "loss_spans": [[1, 9]]},
    ]
    conversations, report = load_conversations(write_dataset(tmp_path / "d", rows), base.tokenizer, 10)
    assert [c.id for c in conversations] == ["long", "fine"]
    assert (report.truncated, report.truncated_tokens, report.tokens, report.loss_tokens) == (2, 20, 13, 8)
    assert sum(report.dropped.values()) == 3
    assert "2 cut off" in report.sentence()


def test_data_of_another_tokenizer_is_refused(base, tmp_path):
    row = {"id": "a", "token_ids": [1, 2, 3], "loss_spans": [[1, 3]]}
    folder = write_dataset(tmp_path / "d", [row], tokenizer_sha256="a" * 64)
    with pytest.raises(BadInput, match="another tokenizer"):
        load_conversations(folder, base.tokenizer, 64, tokenizer_sha256="b" * 64)
    folder = write_dataset(tmp_path / "e", [{**row, "token_ids": [1, 2, 99999]}])
    with pytest.raises(BadInput, match="99999"):
        load_conversations(folder, base.tokenizer, 64, vocab_size=320)


def test_broken_shards_name_file_and_line(base, tmp_path):
    (tmp_path / "shard-00000.jsonl").write_text('{"id": "a"}\n{"id": \n')
    with pytest.raises(BadInput, match="shard-00000.jsonl line 2"):
        load_conversations(tmp_path, base.tokenizer, 64)


def test_the_split_is_by_prompt_and_ignores_order(conversations):
    a = split_held_out(conversations, 0.3, 64, seed=1)
    b = split_held_out(conversations[::-1] + conversations, 0.3, 64, seed=1)
    assert {c.id for c in a[1]} == {c.id for c in b[1]} and len(a[1]) == 4
    assert not {c.group for c in a[0]} & {c.group for c in a[1]}
    assert {c.id for c in split_held_out(conversations, 0.3, 64, seed=2)[1]} != {c.id for c in a[1]}
    assert len(split_held_out(conversations, 0.01, 64, seed=1)[1]) == 1
    assert split_held_out(conversations, 0.0, 64, seed=1)[1] == []


def test_batches_hold_every_row_once_and_pad_little(conversations):
    groups = make_batches(conversations, 128, seed=0)
    assert sorted(i for g in groups for i in g) == list(range(len(conversations)))
    assert all(len(g) * max(len(conversations[i]) for i in g) <= 128 for g in groups if len(g) > 1)
    assert sorted(epoch_order(9, 0, 7)) == list(range(9)) and epoch_order(9, 0, 7) != epoch_order(9, 1, 7)


def test_collate_pads_on_the_right(conversations):
    batch = collate(conversations[:2])
    for row, conversation in enumerate(conversations[:2]):
        n = len(conversation)
        assert batch.input_ids[row, :n].tolist() == conversation.token_ids.tolist()
        assert not batch.mask[row, n:].any() and int(batch.lengths[row]) == n


def test_the_preview_knows_every_end_token_of_the_base(tiny_base, tmp_path):
    """The tokenizer's own end token may differ from the one that ends a turn."""
    folder = shutil.copytree(tiny_base, tmp_path / "base")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    base = load_base(folder)
    assert read_eos_ids(folder, base.tokenizer) == base.eos_ids and len(base.eos_ids) == 2
    data = write_dataset(tmp_path / "d", [{"id": "two", "messages": TWO_TURNS}])
    (only,) = preview(data, folder)
    assert [p["text"] for p in only["pieces"] if p["in_loss"]] == ["lazy dog<|im_end|>", "3 + 1<|im_end|>"]


def test_the_preview_shows_the_same_mask(tiny_base, base, tmp_path):
    rows = [{"id": "two", "messages": TWO_TURNS}, {"id": "none", "messages": TWO_TURNS[:2]}]
    first, second = preview(write_dataset(tmp_path / "d", rows), tiny_base)
    assert [p["text"] for p in first["pieces"] if p["in_loss"]] == ["lazy dog<|im_end|>", "3 + 1<|im_end|>"]
    assert "".join(p["text"] for p in first["pieces"]).startswith("<|im_start|>system")
    assert first["problem"] == "" and "no response" in second["problem"]
