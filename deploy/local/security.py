"""Certificates, users and settings of a cluster whose brokers also listen with TLS and SASL.

Its own CA signs for 127.0.0.1 to .4 and `localhost`. Needs trustme, of the dependency group `test`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

PROTOCOLS: Final = ("SSL", "SASL_SSL", "SASL_PLAINTEXT")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
HOSTS: Final = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
_MODULES: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class PemFiles:
    """A certificate with its chain, its key (PKCS #8), and both in one file."""

    certificate: Path
    key: Path
    both: Path


@dataclass(slots=True)
class Security:
    """What a cluster with TLS and SASL needs. `users`: name and password, for PLAIN and SCRAM.

    OAUTHBEARER takes unsecured tokens (`alg: none`). The SSL listener asks for a client certificate and takes one of
    its CA only; clients without one pass.
    """

    users: Mapping[str, str] = field(
        default_factory=lambda: {"alice": "alice-pw-6e1fd0", "bob": "bob-pw-93ca2b", "etl": "etl-pw-41b7ce"}
    )
    _ca: trustme.CA = field(default_factory=lambda: trustme.CA(key_type=trustme.KeyType.ECDSA))

    def write_ca(self, path: Path) -> Path:
        """Write the certificate of the CA."""
        self._ca.cert_pem.write_to_path(str(path))
        return path

    def issue(self, directory: Path, name: str, *hosts: str, common_name: str | None = None) -> PemFiles:
        """Write a new certificate of the CA for the hosts, and its key, as `name`.crt, .key and .pem.

        A client's needs a host, too: Java refuses one without any alternative name.
        """
        issued = self._ca.issue_cert(
            *hosts or (f"{name}.test",), common_name=common_name, key_type=trustme.KeyType.ECDSA
        )
        key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        files = PemFiles(directory / f"{name}.crt", directory / f"{name}.key", directory / f"{name}.pem")
        for path, content in ((files.certificate, chain), (files.key, key), (files.both, key + chain)):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return files

    def scram_credentials(self) -> list[str]:
        """Arguments of `--add-scram` of Kafka's storage tool."""
        return [
            f"{mechanism}=[name={name},password={password}]"
            for mechanism in MECHANISMS
            if mechanism.startswith("SCRAM")
            for name, password in self.users.items()
        ]

    def server_properties(self, directory: Path) -> dict[str, str]:
        """Settings of brokers for the listeners of `PROTOCOLS`; their PEM files are written to the directory."""
        broker = self.issue(directory, "broker", *HOSTS)
        users = "".join(f' user_{name}="{password}"' for name, password in self.users.items())
        modules = {
            "plain": f"{_MODULES}.plain.PlainLoginModule required{users};",
            "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
            "oauthbearer": f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";',
        }
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": f"{broker.both}",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": f"{self.write_ca(directory / 'ca.crt')}",
            "listener.name.ssl.ssl.client.auth": "requested",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "delegation.token.secret.key": "key-of-delegation-tokens",
            **{
                f"listener.name.{protocol.lower()}.{mechanism}.sasl.jaas.config": module
                for protocol in PROTOCOLS
                if protocol.startswith("SASL")
                for mechanism, module in modules.items()
            },
        }
