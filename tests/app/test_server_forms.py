"""Tokens and servers on the Settings page: secrets are never shown, and input changes only its own table."""

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
OPERATOR_SETTINGS = """# mine
[endpoints.mine] # ours
url = "http://a/v1" # here
retries = 2

# for trainings
[hidden_states.s]
url = "http://s"
"""
EVIL = '"]\n[endpoints.evil]\nurl = "http://evil"'
NEW_SERVER = "endpoints", "team-1", "http://127.0.0.1:8000/v1", "m"


@pytest.fixture
def settings(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a home whose settings.toml defines servers."""
    monkeypatch.setenv("SPECULOOS_HOME", str(home.home))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    home.home.mkdir(exist_ok=True)
    (home.home / "settings.toml").write_text(OPERATOR_SETTINGS)
    return home


def settings_text(settings: Settings) -> str:
    return (settings.home / "settings.toml").read_text()


def all_text(*outputs: object) -> str:
    return " ".join(str(output.constructor_args if isinstance(output, gr.Dropdown) else output) for output in outputs)


def test_a_secret_is_stored_privately_and_is_in_no_page_log_or_settings_file(settings: Settings) -> None:
    log = io.StringIO()
    stream = RedactingStream(log, known_secrets(settings))
    outputs = [*forms.save_token(settings, f" {SECRET}-hub\n"), *forms.save_server(settings, *NEW_SERVER, SECRET)]
    outputs += [forms.hub_state(settings), *forms.servers_view(settings), *forms.fill(settings, "endpoints/team-1")]
    assert "sesame" not in all_text(*outputs) + settings_text(settings)
    assert "The token is set" in outputs[0] and "Saved." in all_text(*outputs)
    current = settings.current()
    assert current.hf_token == f"{SECRET}-hub" and current.endpoints["team-1"].key == SECRET
    assert "sesame" not in repr(current) + repr(current.endpoints)
    files = sorted((settings.home / "secrets").glob("variable-*"))
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 2
    assert (settings.home / "secrets").stat().st_mode & 0o77 == 0
    stream.write(f"{SECRET} and {SECRET}-hub")
    assert "sesame" not in log.getvalue(), "a log stream of before knows it too"
    assert SECRET in known_secrets(settings), "and downloads"
    assert load({"SPECULOOS_HOME": str(settings.home)}).hf_token == f"{SECRET}-hub", "and the next job has it"
    forms.delete_token(settings)
    forms.delete_server(settings, "endpoints/team-1")
    assert not list((settings.home / "secrets").glob("variable-*")) and settings.current().hf_token == ""


def test_what_the_operator_wrote_stays(settings: Settings) -> None:
    forms.save_server(settings, *NEW_SERVER, "")
    assert settings_text(settings).startswith(OPERATOR_SETTINGS) and list(settings.current().endpoints) == [
        "mine",
        "team-1",
    ]
    forms.save_server(settings, "endpoints", "mine", "http://a/v1", "other", "")
    assert settings.current().endpoints["mine"].model == "other" and settings.current().endpoints["mine"].retries == 2
    for comment in ("# mine\n", "# ours\n", "# here\n", "# for trainings\n"):
        assert comment in settings_text(settings)
    forms.delete_server(settings, "endpoints/mine")
    assert list(settings.current().endpoints) == ["team-1"] and "# for trainings\n[hidden_states.s]" in settings_text(
        settings
    )
    forms.save_server(settings, "hidden_states/vllm", "s", "http://s", "", "")
    assert settings.current().state_servers["s"].kind == "vllm"


@pytest.mark.parametrize("name", [EVIL, "a\nb", "a.b", "x]", "\x00", "", "../x"])
def test_a_name_cannot_inject_toml(settings: Settings, name: str) -> None:
    for kind in forms.KINDS:
        assert "use up to 64 letters" in forms.save_server(settings, kind, name, "http://a", "", SECRET)[0]
    assert settings_text(settings) == OPERATOR_SETTINGS and not list((settings.home / "secrets").glob("variable-*"))


@pytest.mark.parametrize("text", [f"m{EVIL}", "a\x7fb", "a\x00b", "a\u2028b", "\\"])
def test_a_value_cannot_inject_toml(settings: Settings, text: str) -> None:
    message = forms.save_server(settings, "endpoints", "x", "http://a/v1", text, "")[0]
    if "Saved" in message:
        assert settings.current().endpoints["x"].model == text.strip()
    else:
        assert "one line of text" in message and settings_text(settings) == OPERATOR_SETTINGS
    forms.save_server(settings, "endpoints", "x", f"http://a/{text}", "", "")
    assert set(tomllib.loads(settings_text(settings))["endpoints"]) <= {"mine", "x"}


@pytest.mark.parametrize("url", ["ftp://a", "http://me:pw@a", "http://", "", "http://[", "file:///etc/passwd"])
def test_a_wrong_url_is_refused_with_a_message(settings: Settings, url: str) -> None:
    assert (
        "sp-bad" in forms.save_server(settings, "endpoints", "x", url, "", SECRET)[0]
        and settings_text(settings) == OPERATOR_SETTINGS
    )


def test_a_stored_key_is_not_sent_to_another_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    forms.save_server(settings, *NEW_SERVER, SECRET)
    moved = ("endpoints", "team-1", "http://evil/v1", "m")
    assert "Enter the key again" in forms.save_server(settings, *moved, "")[0]
    assert settings.current().endpoints["team-1"].url == NEW_SERVER[2]
    monkeypatch.setenv(settings.current().endpoints["team-1"].key_env, "of-the-environment")
    assert "takes precedence" in forms.save_server(settings, *moved, "another-key")[0]
    assert settings.current().endpoints["team-1"].key == "of-the-environment"
    monkeypatch.setenv("HF_TOKEN", "hf_of-the-environment")
    assert "takes precedence" in forms.save_token(settings, SECRET)[0] and "takes precedence" in forms.hub_state(
        settings
    )
    assert settings.current().hf_token == "hf_of-the-environment"


def test_the_users_of_a_shared_server_change_nothing(settings: Settings) -> None:
    shared = replace(settings, password="sesame-door")
    messages = [forms.save_token(shared, SECRET)[0], forms.delete_token(shared)]
    messages += [forms.save_server(shared, *NEW_SERVER, SECRET)[0], forms.delete_server(shared, "endpoints/mine")[0]]
    assert all("Only the operator" in message for message in messages)
    assert settings_text(settings) == OPERATOR_SETTINGS and not (settings.home / "secrets").exists()
    with gr.Blocks() as page:
        forms.build_servers(shared)
    assert not any(isinstance(component, gr.Textbox | gr.Button) for component in page.blocks.values())


def test_a_file_that_is_written_in_another_way_is_left_alone(settings: Settings) -> None:
    for text in ('endpoints = {x = {url = "http://x"}}\n', "[broken", '[endpoints]\nx.url = "http://x"\n'):
        (settings.home / "settings.toml").write_text(text)
        message = forms.save_server(settings, "endpoints", "x", "http://y", "", "")[0]
        assert "sp-bad" in message and settings_text(settings) == text
    (settings.home / "settings.toml").write_text('[endpoints.x]\nurl = [\n "http://x",\n "http://z?a=b",\n]\n')
    before = settings_text(settings)
    assert (
        "by hand" in forms.save_server(settings, "endpoints", "x", "http://y", "", "")[0]
        and settings_text(settings) == before
    )


def test_a_damaged_file_changes_nothing_for_pages_that_are_open(settings: Settings) -> None:
    current = settings.current()
    (settings.home / "settings.toml").write_text("[broken")
    assert current.current().endpoints == current.endpoints and "sp-bad" in forms.servers_view(current)[0]


def test_keys_of_similar_names_are_kept_apart(settings: Settings) -> None:
    for name, key in (("a-b", "key-of-the-first"), ("a_b", "key-of-the-second")):
        forms.save_server(settings, "endpoints", name, "http://a", "", key)
    assert [settings.current().endpoints[name].key for name in ("a-b", "a_b")] == [
        "key-of-the-first",
        "key-of-the-second",
    ]


def test_the_command_writes_a_new_server_only(settings: Settings) -> None:
    server = check_server("endpoints", "mine", {"url": "http://b"})
    with pytest.raises(Exception, match="already a server"):
        write_server(settings, "endpoints", server, new=True)
