"""The lease of a GPU stores the memory that its job needs."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("device_leases") as batch:
        batch.add_column(sa.Column("memory", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("device_leases") as batch:
        batch.drop_column("memory")
