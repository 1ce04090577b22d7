"""Tokens and servers on the Settings page: secrets go in and never out, and no text changes more than its own table."""

import io
import tomllib
from dataclasses import replace

import gradio as gr
import pytest

from app.views import server_forms as forms
from speculoos.redaction import RedactingStream, known_secrets
from speculoos.servers import check_server, write_server
from speculoos.settings import Settings, load

SECRET = "sesame-4711-key"
OWN = """# mine
[endpoints.mine] # ours
url = "http://a/v1" # here
retries = 2

# for trainings
[hidden_states.s]
url = "http://s"
"""
EVIL = '"]\n[endpoints.evil]\nurl = "http://evil"'
NEW = "endpoints", "team-1", "http://127.0.0.1:8000/v1", "m"


@pytest.fixture
def own(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home with the servers of its operator."""
    monkeypatch.setenv("SPECULOOS_HOME", str(home.home))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    home.home.mkdir(exist_ok=True)
    (home.home / "settings.toml").write_text(OWN)
    return home


def written(settings: Settings) -> str:
    return (settings.home / "settings.toml").read_text()


def everything(*shown: object) -> str:
    return " ".join(str(each.constructor_args if isinstance(each, gr.Dropdown) else each) for each in shown)


def test_a_secret_is_stored_privately_and_is_in_no_page_log_or_settings_file(own: Settings) -> None:
    log = io.StringIO()
    stream = RedactingStream(log, known_secrets(own))
    shown = [*forms.save_token(own, f" {SECRET}-hub\n"), *forms.save_server(own, *NEW, SECRET)]
    shown += [forms.hub_state(own), *forms.servers_view(own), *forms.fill(own, "endpoints/team-1")]
    assert "sesame" not in everything(*shown) + written(own)
    assert "The token is set" in shown[0] and "Saved." in everything(*shown)
    current = own.current()
    assert current.hf_token == f"{SECRET}-hub" and current.endpoints["team-1"].key == SECRET
    assert "sesame" not in repr(current) + repr(current.endpoints)
    files = sorted((own.home / "secrets").glob("variable-*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 2
    assert (own.home / "secrets").stat().st_mode & 0o77 == 0
    stream.write(f"{SECRET} and {SECRET}-hub")
    assert "sesame" not in log.getvalue(), "a log stream of before knows it too"
    assert SECRET in known_secrets(own), "and downloads"
    assert load({"SPECULOOS_HOME": str(own.home)}).hf_token == f"{SECRET}-hub", "and the next job has it"
    forms.delete_token(own)
    forms.delete_server(own, "endpoints/team-1")
    assert not list((own.home / "secrets").glob("variable-*")) and own.current().hf_token == ""


def test_what_the_operator_wrote_stays(own: Settings) -> None:
    forms.save_server(own, *NEW, "")
    assert written(own).startswith(OWN) and list(own.current().endpoints) == ["mine", "team-1"]
    forms.save_server(own, "endpoints", "mine", "http://a/v1", "other", "")
    assert own.current().endpoints["mine"].model == "other" and own.current().endpoints["mine"].retries == 2
    for comment in ("# mine\n", "# ours\n", "# here\n", "# for trainings\n"):
        assert comment in written(own)
    forms.delete_server(own, "endpoints/mine")
    assert list(own.current().endpoints) == ["team-1"] and "# for trainings\n[hidden_states.s]" in written(own)
    forms.save_server(own, "hidden_states/vllm", "s", "http://s", "", "")
    assert own.current().state_servers["s"].kind == "vllm"


@pytest.mark.parametrize("name", [EVIL, "a\nb", "a.b", "x]", "\x00", "", "../x"])
def test_a_name_cannot_inject_toml(own: Settings, name: str) -> None:
    for kind in forms.KINDS:
        assert "use up to 64 letters" in forms.save_server(own, kind, name, "http://a", "", SECRET)[0]
    assert written(own) == OWN and not list((own.home / "secrets").glob("variable-*"))


@pytest.mark.parametrize("text", [f"m{EVIL}", "a\x7fb", "a\x00b", "a\u2028b", "\\"])
def test_a_value_cannot_inject_toml(own: Settings, text: str) -> None:
    said = forms.save_server(own, "endpoints", "x", "http://a/v1", text, "")[0]
    if "Saved" in said:
        assert own.current().endpoints["x"].model == text.strip()
    else:
        assert "one line of text" in said and written(own) == OWN
    forms.save_server(own, "endpoints", "x", f"http://a/{text}", "", "")
    assert set(tomllib.loads(written(own))["endpoints"]) <= {"mine", "x"}


@pytest.mark.parametrize("url", ["ftp://a", "http://me:pw@a", "http://", "", "http://[", "file:///etc/passwd"])
def test_a_wrong_url_is_said_in_a_sentence(own: Settings, url: str) -> None:
    assert "sp-bad" in forms.save_server(own, "endpoints", "x", url, "", SECRET)[0] and written(own) == OWN


def test_a_stored_key_is_not_sent_to_another_server(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    forms.save_server(own, *NEW, SECRET)
    moved = ("endpoints", "team-1", "http://evil/v1", "m")
    assert "Enter the key again" in forms.save_server(own, *moved, "")[0]
    assert own.current().endpoints["team-1"].url == NEW[2]
    monkeypatch.setenv(own.current().endpoints["team-1"].key_env, "of-the-environment")
    assert "takes precedence" in forms.save_server(own, *moved, "another-key")[0]
    assert own.current().endpoints["team-1"].key == "of-the-environment"
    monkeypatch.setenv("HF_TOKEN", "hf_of-the-environment")
    assert "takes precedence" in forms.save_token(own, SECRET)[0] and "takes precedence" in forms.hub_state(own)
    assert own.current().hf_token == "hf_of-the-environment"


def test_the_users_of_a_shared_server_change_nothing(own: Settings) -> None:
    shared = replace(own, password="sesame-door")
    said = [forms.save_token(shared, SECRET)[0], forms.delete_token(shared)]
    said += [forms.save_server(shared, *NEW, SECRET)[0], forms.delete_server(shared, "endpoints/mine")[0]]
    assert all("Only the operator" in each for each in said)
    assert written(own) == OWN and not (own.home / "secrets").exists()
    with gr.Blocks() as page:
        forms.build_servers(shared)
    assert not any(isinstance(each, gr.Textbox | gr.Button) for each in page.blocks.values())


def test_a_file_that_is_written_in_another_way_is_left_alone(own: Settings) -> None:
    for text in ('endpoints = {x = {url = "http://x"}}\n', "[broken", '[endpoints]\nx.url = "http://x"\n'):
        (own.home / "settings.toml").write_text(text)
        said = forms.save_server(own, "endpoints", "x", "http://y", "", "")[0]
        assert "sp-bad" in said and written(own) == text
    (own.home / "settings.toml").write_text('[endpoints.x]\nurl = [\n "http://x",\n "http://z?a=b",\n]\n')
    before = written(own)
    assert "by hand" in forms.save_server(own, "endpoints", "x", "http://y", "", "")[0] and written(own) == before


def test_a_damaged_file_changes_nothing_for_pages_that_are_open(own: Settings) -> None:
    known = own.current()
    (own.home / "settings.toml").write_text("[broken")
    assert known.current().endpoints == known.endpoints and "sp-bad" in forms.servers_view(known)[0]


def test_keys_of_similar_names_are_kept_apart(own: Settings) -> None:
    for name, key in (("a-b", "key-of-the-first"), ("a_b", "key-of-the-second")):
        forms.save_server(own, "endpoints", name, "http://a", "", key)
    assert [own.current().endpoints[name].key for name in ("a-b", "a_b")] == ["key-of-the-first", "key-of-the-second"]


def test_the_command_writes_a_new_server_only(own: Settings) -> None:
    server = check_server("endpoints", "mine", {"url": "http://b"})
    with pytest.raises(Exception, match="already a server"):
        write_server(own, "endpoints", server, new=True)
