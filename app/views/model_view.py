"""HTML of base models: a card in the list, and the details of one. Pure functions of rows."""

from app.links import model_link
from app.views.checkpoint_rows import method_words
from app.views.job_view import banner, job_line, progress
from app.widgets.elements import badge, detail_head, facts, link_button, notice
from app.widgets.formatting import ago, size
from app.widgets.picker import pick
from app.widgets.text import safe, tag
from tracking.tables import Base, Job

SOURCE_WORDS = {"starter": "starter", "hub": "hub", "folder": "local folder", "gguf": "GGUF file"}
STATE_BADGES = {"pending": ("Downloading", "info"), "failed": ("Download failed", "bad"), "ready": ("Ready", "good")}


def card(base: Base) -> str:
    lines = [tag("span", safe(base.name), class_="sp-card-title"), tag("span", safe(line(base)), class_="sp-card-line")]
    if base.note:
        lines.append(tag("span", safe(base.note), class_="sp-card-line"))
    marks = badge(*STATE_BADGES.get(base.state, (base.state, ""))) + badge(SOURCE_WORDS.get(base.source, base.source))
    return pick("models", base.id, "".join(lines) + tag("div", marks, class_="sp-card-badges"), class_="sp-card")


def line(base: Base) -> str:
    """`LlamaForCausalLM · 135 M parameters · float32`."""
    card = base.card or {}
    parts = [card.get("architecture"), f"{count(card['parameters'])} parameters" if card.get("parameters") else ""]
    return " · ".join(p for p in (*parts, card.get("dtype")) if p) or base.location


def count(number: float) -> str:
    """134515008 → "135 M"."""
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            scaled = number / factor
            return f"{scaled:.0f} {letter}" if scaled >= 100 else f"{scaled:.3g} {letter}"
    return f"{number:.0f}"


def title(base: Base) -> str:
    return detail_head(base.name, badge(*STATE_BADGES.get(base.state, (base.state, ""))))


def state(base: Base, job: Job | None, waits_for: str) -> str:
    """Progress or error of the download; "" for a ready model."""
    if base.state == "ready" or job is None:
        return "" if base.state == "ready" else notice("The download of this model failed. Add it again.", "bad")
    return progress(job) + banner(job, waits_for) + job_line(job)


def uses(base: Base) -> str:
    if base.state != "ready":
        return ""
    links = (
        link_button("Chat with it", model_link("playground", base.name), main=True),
        link_button("Generate training data", f"/data?base={base.id}"),
        link_button("Train a draft for it", f"/train?base={base.id}"),
        link_button("Import a published draft", f"/checkpoints?base={base.id}"),
    )
    return tag("div", "".join(links), class_="sp-link-row")


def methods(base: Base) -> str:
    """Draft methods that the base model supports, and why it does not support others."""
    reasons = (base.card or {}).get("methods") or {}
    rows = "".join(_method(name, reason) for name, reason in reasons.items())
    return tag("ul", rows, class_="sp-methods") if rows else ""


def _method(name: str, reason: str) -> str:
    mark = badge("no", "bad") if reason else badge("yes", "good")
    return tag("li", mark + tag("b", safe(method_words(name))) + tag("span", safe(reason)))


def details(base: Base) -> str:
    card = base.card or {}
    memory = card.get("memory") or {}
    heads = f"{card.get('heads')} ({card.get('kv_heads')} key-value)" if card.get("heads") else ""
    return facts(
        [
            ("Architecture", card.get("architecture")),
            ("Parameters", f"{card['parameters']:,}" if card.get("parameters") else ""),
            ("Layers", card.get("layers")),
            ("Hidden size", card.get("hidden_size")),
            ("Attention heads", heads),
            ("Vocabulary", f"{card['vocabulary']:,}" if card.get("vocabulary") else ""),
            ("Maximum context", f"{card['max_length']:,} tokens" if card.get("max_length") else ""),
            ("Data type", card.get("dtype")),
            ("Size on disk", size(card["size_bytes"]) if card.get("size_bytes") else ""),
            ("Memory needed", ", ".join(f"{size(v)} in {k}" for k, v in memory.items())),
            ("Chat template", {True: "yes", False: "none (not a chat model)"}.get(card.get("chat_template"))),
            ("Licence", card.get("licence") or ("not stated" if card else "")),
            ("Source", f"{SOURCE_WORDS.get(base.source, base.source)}: {base.location}"),
            ("Folder", base.path),
            ("Weights sha256", base.weights_sha256),
            ("Tokenizer sha256", base.tokenizer_sha256),
            ("Added", ago(base.created_at)),
        ]
    )
