"""The `fastpaged` command."""
