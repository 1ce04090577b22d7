"""Columns for sorting and filtering evaluations; an evaluation of a server may have no base."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXTS = {"suite": 64, "questions": 200, "tree": 200, "source": 200, "machine": 200, "dtype": 16}
NUMBERS = ("speedup", "speedup_low", "speedup_high", "tau", "tau_low", "tau_high")
NUMBERS += ("tokens_per_second", "plain_tokens_per_second")


def upgrade() -> None:
    with op.batch_alter_table("evaluations") as batch:
        batch.alter_column("base_id", existing_type=sa.String(length=32), nullable=True)
        batch.add_column(sa.Column("matrix_id", sa.String(length=32), nullable=True))
        for name, length in TEXTS.items():
            batch.add_column(sa.Column(name, sa.String(length=length), nullable=False, server_default=""))
        batch.add_column(sa.Column("temperature", sa.Float(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("top_p", sa.Float(), nullable=False, server_default="1"))
        for name in NUMBERS:
            batch.add_column(sa.Column(name, sa.Float(), nullable=True))
        batch.create_index(op.f("ix_evaluations_matrix_id"), ["matrix_id"])
    _fill()


def downgrade() -> None:
    """Deletes evaluations without a base, which an older version cannot store."""
    op.execute("DELETE FROM evaluations WHERE base_id IS NULL")
    with op.batch_alter_table("evaluations") as batch:
        batch.drop_index(op.f("ix_evaluations_matrix_id"))
        for name in ("matrix_id", "temperature", "top_p", *TEXTS, *NUMBERS):
            batch.drop_column(name)
        batch.alter_column("base_id", existing_type=sa.String(length=32), nullable=False)


def _fill() -> None:
    """Fill the columns of existing evaluations from their configs and results."""
    columns = [sa.column(name) for name in ("id", "config", "result", *TEXTS, *NUMBERS)]
    rows, data = sa.table("evaluations", *columns), sa.table("datasets", sa.column("id"), sa.column("name"))
    connection = op.get_bind()
    names = {row_id: name for row_id, name in connection.execute(sa.select(data.c.id, data.c.name))}
    for row_id, config, result in connection.execute(sa.select(rows.c.id, rows.c.config, rows.c.result)).all():
        values = _values(_object(config), _object(result), names)
        connection.execute(sa.update(rows).where(rows.c.id == row_id).values(**values))


def _values(config: dict, result: dict, names: dict[str, str]) -> dict[str, object]:
    machine, drafting = result.get("machine") or {}, config.get("drafting")
    asked = {"suite": "own" if config.get("dataset_id") else "built_in"}
    asked |= {"questions": names.get(config.get("dataset_id") or "", "")}
    asked |= {"tree": json.dumps(drafting)[:200] if drafting else ""}
    found = {"tau": result.get("mean_accepted_length"), "machine": str(machine.get("processor") or "")[:200]}
    found |= {name: result.get(name) for name in ("speedup", "tokens_per_second", "plain_tokens_per_second")}
    for name, key in (("speedup", "speedup_interval"), ("tau", "mean_accepted_length_interval")):
        found[f"{name}_low"], found[f"{name}_high"] = result.get(key) or (None, None)
    return {**asked, **found, "dtype": str(result.get("dtype") or "")[:16]}


def _object(value: object) -> dict:
    """The object of a JSON column, which the untyped query returns as text or object."""
    made = json.loads(value) if isinstance(value, str) else value
    return made if isinstance(made, dict) else {}
