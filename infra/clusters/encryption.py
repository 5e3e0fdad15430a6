"""TLS between scheduler, workers and clients: whoever has no certificate of the cluster's authority is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from distributed.security import Security

from infra.clusters.keywords import Keywords
from infra.clusters.model import Tls
from tasks.errors import JobError

if TYPE_CHECKING:
    from infra.clusters.model import Cluster

SKEW = datetime.timedelta(days=1)  # by which the clocks of other hosts may be behind
VALID = datetime.timedelta(days=365)  # of temporary certificates; no run takes longer


def security_of(cluster: Cluster) -> Security | None:
    """Return the certificates of `cluster.tls`, else temporary ones, new each time; None with `unencrypted` and for a
    scheduler that rowmill does not run.

    JobError if a file of `cluster.tls` is not there or is not a certificate.
    """
    if cluster.tls:
        return _of_files(cluster.tls)
    return None if cluster.unencrypted or cluster.kind == "address" else temporary()


def temporary() -> Security:
    """Return a key and a certificate for all roles of one cluster, in memory alone: who has not got them is refused.

    As `Security.temporary`, but a key on an elliptic curve, which is made in a millisecond; RSA's takes a tenth of a
    second, and as long again at each connection.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rowmill")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = signed.public_bytes(serialization.Encoding.PEM).decode()
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, *plain).decode()
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_cert": certificate for role in roles},
        **{f"tls_{role}_key": secret for role in roles},
    )


def protocol_of(cluster: Cluster, security: Security | None) -> str:
    """tls with certificates, else the protocol of the job, else tcp."""
    return "tls" if security else cluster.protocol or "tcp"


def _of_files(tls: Tls) -> Security:
    for name in ("ca", "cert", "key"):
        path = Path(getattr(tls, name))
        if not path.is_file():
            raise JobError(
                "the certificate file is not there",
                where=f"cluster.tls.{name} = {path}",
                do="give the path of a PEM file that every host has",
            )
    security = Security(
        require_encryption=True,
        tls_ca_file=tls.ca,
        **{f"tls_{role}_cert": tls.cert for role in ("client", "scheduler", "worker")},
        **{f"tls_{role}_key": tls.key for role in ("client", "scheduler", "worker")},
    )
    try:
        security.get_connection_args("client")
    except OSError as error:  # ssl.SSLError is one
        raise JobError(
            "the certificates cannot be used",
            where="cluster.tls",
            why=str(error),
            do="`openssl verify -CAfile CA CERT` tells whether they belong together",
        ) from None
    return security


def settings_of(files: dict[str, str]) -> Keywords:
    """Dask's settings for processes elsewhere, which find ca, cert and key in these files."""
    settings: Keywords = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": files["ca"],
    }
    for role in ("client", "scheduler", "worker"):
        settings |= {f"distributed.comm.tls.{role}.{part}": files[part] for part in ("cert", "key")}
    return settings


def contents_of(security: Security | None) -> dict[str, str]:
    """The PEM texts of temporary certificates, which other hosts do not have yet, by ca, cert and key; else nothing."""
    role = security.get_tls_config_for_role("worker") if security else {}
    texts = {"ca": role.get("ca_file"), "cert": role.get("cert"), "key": role.get("key")}
    return {name: text for name, text in texts.items() if text and "\n" in text}
