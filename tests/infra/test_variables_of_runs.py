"""Which variables of the environment a run of a pool of ours may have, by their names alone."""

from __future__ import annotations

import re

import pytest

from infra.orchestration.deployment_file import ENVIRONMENT, FOLDER, SOURCE
from infra.orchestration.pool_template import NAMES

# Each of these runs code, widens a limit, or reads settings from a file.
DANGEROUS = [
    "ROWMILL_ALLOWED_ROOTS", "ROWMILL_API_KEY", "ROWMILL_STORAGE_SHOP", "PREFECT_API_KEY", "PREFECT_HOME",
    "DASK_CONFIG", "DASK_A__KEY", "PYTHONPATH", "PYTHONSTARTUP", "PYTHON_KEY", "LD_PRELOAD", "LD_KEY", "PATH", "HOME",
    "XDG_STATE_HOME", "ENV", "BASH_ENV", "OPENSSL_CONF", "OPENSSL_MODULES", "SSL_CERT_FILE", "SSLKEYLOGFILE",
    "OMP_TOOL_LIBRARIES", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "CUDA_INJECTION64_PATH", "CUDA_PATH",
    "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "UCX_MODULE_DIR", "NCCL_NET_PLUGIN", "RMM_ALLOCATOR", "KUBECONFIG",
    "AWS_CONFIG_FILE", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_CONNECTION_STRING", "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "ARROW_LIBHDFS_DIR",
    "JAVA_TOOL_OPTIONS", "MPLBACKEND", "FSSPEC_CONFIG_DIR", "OPENLINEAGE_CONFIG", "HTTPS_PROXY", "TMPDIR", "TZ",
    "GIT_SSH_COMMAND", "EDITOR", "PAGER", "path", "aws_region",
]  # fmt: skip
NEEDED = [
    *ENVIRONMENT, FOLDER, SOURCE, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_KEY",
    "OPENLINEAGE_API_KEY", "OPENLINEAGE_NAMESPACE", "OTEL_SERVICE_NAME", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "SHOP_API_KEY", "SHOP_PASSWORD", "HF_TOKEN",
]  # fmt: skip


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_runs_code_or_widens_a_limit_is_the_worker_s(name: str) -> None:
    assert re.search(NAMES, name) is None


@pytest.mark.parametrize("name", NEEDED)
def test_secrets_accounts_and_devices_may_be_the_run_s(name: str) -> None:
    assert re.search(NAMES, name)
