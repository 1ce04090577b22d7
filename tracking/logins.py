"""Who was let in: one row a browser. A login holds as long as its row; an ended or expired one is gone."""

from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from tracking.tables import Login, now


def begin(session: Session, login_id: str, user: str, seconds: float) -> Login:
    """Let a browser in for `seconds`, and forget the logins that are over."""
    session.execute(delete(Login).where(Login.ends_at <= now()))
    login = Login(id=login_id, user=user, ends_at=now() + timedelta(seconds=seconds))
    session.add(login)
    session.flush()
    return login


def find(session: Session, login_id: str) -> Login | None:
    """The login with this id, unless it is over."""
    login = session.get(Login, login_id, populate_existing=True)
    return login if login and login.ends_at > now() else None


def rename(session: Session, login_id: str, user: str) -> None:
    """What this browser's person wants to be called from now on."""
    if login := find(session, login_id):
        login.user = user


def end(session: Session, login_id: str) -> None:
    """Log out."""
    session.execute(delete(Login).where(Login.id == login_id))
