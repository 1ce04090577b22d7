"""Logins of browsers, one row each. A login is valid while its row exists."""

from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from tracking.tables import Login, now


def begin(session: Session, login_id: str, user: str, seconds: float) -> Login:
    """Create a login for `seconds`, and delete expired ones."""
    session.execute(delete(Login).where(Login.ends_at <= now()))
    login = Login(id=login_id, user=user, ends_at=now() + timedelta(seconds=seconds))
    session.add(login)
    session.flush()
    return login


def find(session: Session, login_id: str) -> Login | None:
    """The login with this id, or None if it has expired."""
    login = session.get(Login, login_id, populate_existing=True)
    return login if login and login.ends_at > now() else None


def rename(session: Session, login_id: str, user: str) -> None:
    if login := find(session, login_id):
        login.user = user


def end(session: Session, login_id: str) -> None:
    session.execute(delete(Login).where(Login.id == login_id))
