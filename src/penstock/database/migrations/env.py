"""What Alembic runs: the steps from one version to another, in the transaction of those who ask for them."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
context.run_migrations()
