"""Other users of this machine, and the warning where the pages are open to them."""

import json
import os
import pwd
from dataclasses import replace

import pytest

from cli.launch.up import address
from cli.main import main
from ops import health
from speculoos import people
from speculoos.login_links import consume_login_token
from speculoos.settings import Settings, load


def account(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", shell))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where Alice and Bob have accounts beside ours and the system's."""
    entries = [
        account("root", 0),
        account("daemon", 1, "/usr/sbin/nologin"),
        account("me", os.getuid()),
        account("bob", 12001),
        account("alice", 12002, "/usr/bin/zsh"),
        account("backup-job", 12003, "/usr/sbin/nologin"),
        account("nobody", 65534),
    ]
    monkeypatch.setattr(people.pwd, "getpwall", lambda: entries)
    monkeypatch.setattr(people, "_with_processes", lambda: {"carol"})


def test_people_are_distinguished_from_system_accounts(shared: None) -> None:
    assert people.other_users() == ["alice", "bob", "carol"]


def test_a_real_process_of_another_account_is_looked_at() -> None:
    assert all(name and not name.isdigit() for name in people._with_processes())


def test_there_is_a_warning_if_others_can_open_the_pages(home: Settings, shared: None) -> None:
    assert "alice, bob" in people.access_warning(home)
    assert "SPECULOOS_LOGIN=token" in health.check(home, ["access"])["access"].detail
    assert health.check(home, ["access"])["access"].ok
    for guarded in (replace(home, login="token"), replace(home, password="x")):
        assert people.access_warning(guarded) == ""
        assert "protected by" in health.check(guarded, ["access"])["access"].detail


def test_there_is_no_warning_without_other_users(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "other_users", list)
    assert people.access_warning(home) == ""
    assert "no other user accounts" in health.check(home, ["access"])["access"].detail


def test_other_machines_without_a_password_are_a_fault(home: Settings) -> None:
    part = health.check(replace(home, host="0.0.0.0"), ["access"])["access"]
    assert not part.ok and "SPECULOOS_PASSWORD" in part.hint


def test_an_account_has_a_name_that_a_job_can_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people.getpass, "getuser", lambda: "a\nb" + "c" * 200)
    assert people.current_user() == "ab" + "c" * 78

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(people.getpass, "getuser", nobody)
    assert people.current_user() == ""


def test_the_command_prints_a_link_that_works_once(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECULOOS_LOGIN", "token")
    assert main(["login-link", "--json"]) == 0
    link = json.loads(capsys.readouterr().out)["url"]
    assert link.startswith("http://127.0.0.1:7860/login?token=")
    token = link.split("token=")[1]
    assert consume_login_token(home, token) and not consume_login_token(home, token)
    assert address(load()).startswith("http://127.0.0.1:7860/login?token=")


def test_open_pages_need_no_link(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["login-link"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == "http://127.0.0.1:7860" and "SPECULOOS_LOGIN=token" in captured.err
    assert not (home.home / "secrets" / "login-links").exists()
