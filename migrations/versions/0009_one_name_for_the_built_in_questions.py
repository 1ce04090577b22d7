"""All evaluations on the built-in questions get the same name for them."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TITLE, ADDED = "Built-in questions", "built-in-questions"
"""Their name, and the name of the data set that the Data page creates from them."""
FILES = (f"builtin:{ADDED}", "/evaluation/questions.jsonl")
"""Path that its import read, in this and in earlier versions."""


def upgrade() -> None:
    columns = [sa.column(name) for name in ("id", "suite", "questions", "config")]
    rows, data = sa.table("evaluations", *columns), sa.table("datasets", sa.column("id"), sa.column("config"))
    connection = op.get_bind()
    connection.execute(sa.update(rows).where(rows.c.suite == "built_in").values(questions=TITLE))
    sets = {row_id: _object(config) for row_id, config in connection.execute(sa.select(data.c.id, data.c.config))}
    own = sa.select(rows.c.id, rows.c.questions, rows.c.config).where(rows.c.suite == "own")
    for row_id, questions, config in connection.execute(own).all():
        asked = sets.get(_object(config).get("dataset_id"))
        if questions == ADDED if asked is None else _is_built_in(asked):
            named = {"suite": "built_in", "questions": TITLE}
            connection.execute(sa.update(rows).where(rows.c.id == row_id).values(**named))


def downgrade() -> None:
    """Nothing to undo: an earlier version shows these names too."""


def _is_built_in(config: dict) -> bool:
    """Whether an import with this config read all built-in questions."""
    whole = config.get("original_name") == f"{ADDED}.jsonl" and config.get("limit") is None
    return whole and str(config.get("path")).endswith(FILES)


def _object(value: object) -> dict:
    """The object of a JSON column, which the untyped query returns as text or object."""
    made = json.loads(value) if isinstance(value, str) else value
    return made if isinstance(made, dict) else {}
