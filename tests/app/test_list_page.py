"""The poll of a list page sends what changed and nothing else."""

import gradio as gr

from app.widgets.list_page import SIGNATURE_SEPARATOR, changed_parts


def skipped(part) -> bool:
    return isinstance(part, dict) and part == gr.skip()


def test_the_first_poll_sends_everything():
    remembered, *parts = changed_parts("", "signature", ["a", "b"])
    assert parts == ["a", "b"]
    assert remembered.partition(SIGNATURE_SEPARATOR)[0] == "signature"


def test_texts_that_are_shown_already_are_left_out():
    remembered, *_ = changed_parts("", "1", ["a", "b"])
    remembered, *parts = changed_parts(remembered, "2", ["a", "c"])
    assert skipped(parts[0])
    assert parts[1] == "c"
    assert remembered.partition(SIGNATURE_SEPARATOR)[0] == "2"
    assert changed_parts(remembered, "3", ["b", "c"])[1] == "b"


def test_updates_of_buttons_are_always_sent_and_another_page_starts_anew():
    button = gr.Button(visible=False)
    remembered, *_ = changed_parts("", "1", [button, "a"])
    assert changed_parts(remembered, "2", [button, "a"])[1] is button
    assert changed_parts(remembered, "2", ["a"])[1:] == ["a"]
