"""Jobs store their estimated time and units of work."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("estimated_seconds", sa.Float(), nullable=True))
        batch.add_column(sa.Column("work", sa.Float(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.drop_column("work")
        batch.drop_column("estimated_seconds")
