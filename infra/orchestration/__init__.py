"""Prefect's side: its server, its task runner, deployments."""
