"""Jobs can be divided into shards, which are jobs with a parent."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("parent_id", sa.String(length=32), nullable=True))
        batch.add_column(sa.Column("number", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("shards", sa.Integer(), nullable=False, server_default="0"))
        batch.create_foreign_key(op.f("fk_jobs_parent_id_jobs"), "jobs", ["parent_id"], ["id"])
        batch.create_unique_constraint(op.f("uq_jobs_parent_id"), ["parent_id", "number"])


def downgrade() -> None:
    """Deletes shards, because an older version would treat them as ordinary jobs. Their files stay."""
    op.execute("DELETE FROM job_logs WHERE job_id IN (SELECT id FROM jobs WHERE parent_id IS NOT NULL)")
    op.execute("DELETE FROM metrics WHERE job_id IN (SELECT id FROM jobs WHERE parent_id IS NOT NULL)")
    op.execute("DELETE FROM samples WHERE job_id IN (SELECT id FROM jobs WHERE parent_id IS NOT NULL)")
    op.execute("DELETE FROM jobs WHERE parent_id IS NOT NULL")
    with op.batch_alter_table("jobs") as batch:
        batch.drop_constraint(op.f("uq_jobs_parent_id"), type_="unique")
        batch.drop_constraint(op.f("fk_jobs_parent_id_jobs"), type_="foreignkey")
        batch.drop_column("shards")
        batch.drop_column("number")
        batch.drop_column("parent_id")
