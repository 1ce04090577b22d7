"""Text of a stream: pieces concatenate to the whole, and characters are never split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.step import DraftRecord, EmittedToken, Step
from decoding.text import TextStream
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
FAMILY = "👨‍👩‍👧"  # three people joined: one picture, many code points
FLAG = "🇫🇮"


def steps_of(ids, sizes=(1, 3, 2), finish="stop"):
    """Distribute the ids over steps of varying sizes, as verifications emit them."""
    steps, at, index = [], 0, 0
    while at < len(ids):
        size = sizes[index % len(sizes)]
        emitted = tuple(EmittedToken(i, "draft", depth, 0) for depth, i in enumerate(ids[at : at + size], 1))
        at += size
        steps.append(Step(index, "verify", emitted, finish=finish if at >= len(ids) else None))
        index += 1
    return steps


def texts_of(ids, stop=(), **kwargs):
    stream = TextStream(TOKENIZER, stop)
    records = [stream.record(step) for step in steps_of(ids, **kwargs)]
    texts = [token["text"] for record in records for token in record["tokens"]]
    assert "".join(texts) == stream.text
    return texts


def decode(ids):
    return TOKENIZER.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "text", ["the lazy dog", "naïve 🦊 fox", "日本語 text", f"a {FAMILY} b", f"{FLAG}!", "e\u0301 é"]
)
def test_pieces_concatenate_and_no_piece_holds_half_a_character(text):
    ids = TOKENIZER(text)["input_ids"]
    texts = texts_of(ids)
    assert "".join(texts) == text and len(texts) == len(ids)
    assert not any("\ufffd" in token_text for token_text in texts)


def test_an_emoji_of_four_tokens_comes_out_with_the_last_of_them():
    ids = TOKENIZER("a🦊b")["input_ids"]
    assert texts_of(ids) == ["a", "", "", "", "🦊", "b"]


@pytest.mark.parametrize("origins", [("draft",) * 4, ("target",) * 4, ("draft", "draft", "draft", "target")])
def test_a_character_of_several_tokens_has_their_origins(origins):
    ids = TOKENIZER("a🦊b")["input_ids"][1:5]
    stream = TextStream(TOKENIZER)
    emitted = [EmittedToken(token, origin) for token, origin in zip(ids, origins, strict=True)]
    steps = [Step(i, "verify", (token,)) for i, token in enumerate(emitted)]
    reported = [record["tokens"][0].get("origins") for record in stream.records(steps)]
    assert reported == [None, None, None, list(origins)] and stream.text == "🦊"


def test_an_answer_is_decoded_in_the_context_of_earlier_tokens():
    ids = TOKENIZER("the lazy 🦊 fox")["input_ids"]
    for cut in range(1, len(ids)):
        stream = TextStream(TOKENIZER, before=ids[:cut])
        for step in steps_of(ids[cut:]):
            stream.record(step)
        assert decode(ids[:cut]).rstrip("\ufffd") + stream.text == "the lazy 🦊 fox"


def test_joined_people_and_flags_are_not_shown_in_parts():
    for picture in (FAMILY, FLAG):
        shown = [token_text for token_text in texts_of(TOKENIZER(f"x{picture}y")["input_ids"]) if token_text]
        joined_ends = [token_text for token_text in shown if token_text.endswith("\u200d")]
        assert not joined_ends and FLAG[0] not in shown
        assert "".join(shown) == f"x{picture}y"


def test_bytes_that_never_become_a_character_come_out_at_the_end():
    ids = TOKENIZER("a🦊")["input_ids"][:-1]
    assert "".join(texts_of(ids)) == decode(ids) == "a\ufffd"


def test_special_tokens_have_no_text_but_their_names_in_the_draft():
    end = TOKENIZER.eos_token_id
    stream = TextStream(TOKENIZER)
    step = Step(
        0, "verify", (EmittedToken(end, "target"),), DraftRecord((end, TOKENIZER(" fox")["input_ids"][0]), (-1, 0))
    )
    record = stream.record(step)
    assert record["tokens"][0]["text"] == ""
    assert record["draft"]["texts"][0] == "<|im_end|>" and record["draft"]["texts"][1] != ""


def test_stop_texts_are_left_out_and_what_may_begin_one_is_held_back():
    ids = TOKENIZER("the fox STOP the dog")["input_ids"]
    stream = TextStream(TOKENIZER, stop=("STOP",))
    texts = []
    for step in steps_of(ids, sizes=(1,)):
        stream.record(step)
        texts.append(stream.text)
    assert not any("S" in text for text in texts)
    assert stream.text == "the fox "


def test_a_beginning_of_a_stop_text_that_does_not_go_on_is_emitted_later():
    assert "".join(texts_of(TOKENIZER("a STONE")["input_ids"], stop=("STOP",))) == "a STONE"
    assert "".join(texts_of(TOKENIZER("a STO")["input_ids"], stop=("STOP",))) == "a STO"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=40))
def test_any_tokens_at_all_concatenate_to_their_full_decoding(ids):
    assert "".join(texts_of(ids)) == decode(ids)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_any_text_at_all_comes_back_without_broken_characters(text):
    ids = TOKENIZER(text)["input_ids"]
    texts = texts_of(ids)
    assert "".join(texts) == decode(ids)
    assert all("\ufffd" not in token_text for token_text in texts) or "\ufffd" in text


def test_the_window_stays_short_in_long_texts():
    stream = TextStream(TOKENIZER)
    for step in steps_of(TOKENIZER("the quick brown fox 🦊 " * 50)["input_ids"], sizes=(4,), finish=None):
        stream.record(step)
        assert len(stream._window) < 12
