"""Devices can be reserved for the oldest job that waits for them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("device_leases") as batch:
        batch.add_column(sa.Column("reserved_for", sa.String(64), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("device_leases") as batch:
        batch.drop_column("reserved_for")
