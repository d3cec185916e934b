"""Certificates for tests: of an authority, a server and a client."""

from __future__ import annotations

from pathlib import Path

import trustme


class Certificates:
    """Certificate files in a directory. `options` returns the parameters for a URL."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        authority = trustme.CA()
        self.ca = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server_key, self.server_cert = self._issued(authority, directory / "server", "127.0.0.1", "localhost")
        self.client_key, self.client_cert = self._issued(authority, directory / "client", "client.example")

    @staticmethod
    def _issued(authority: trustme.CA, stem: Path, *names: str) -> tuple[Path, Path]:
        issued = authority.issue_cert(*names)
        key, chain = stem.with_suffix(".key"), stem.with_suffix(".pem")
        issued.private_key_pem.write_to_path(str(key))
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return key, chain

    def settings(self) -> dict[str, str]:
        """Return the settings of a server that also requires a client certificate."""
        return {
            "tls-cert-file": str(self.server_cert), "tls-key-file": str(self.server_key), "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "yes", "tls-replication": "yes",
        }  # fmt: skip

    def options(self, *, client: bool = True) -> str:
        own = f"&ssl_certfile={self.client_cert}&ssl_keyfile={self.client_key}" if client else ""
        return f"ssl_ca_certs={self.ca}{own}"
