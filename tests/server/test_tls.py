"""Certificates and keys: used where they are good, named in one line where they are not."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.server.launch import run_server
from vllm_lite.server.listen import Listener

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with c.pem, its key k.pem, the same key encrypted, another key, and junk."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    openssl("req", "-x509", *new_key, *name, "-keyout", "k.pem", "-out", "c.pem")
    openssl("req", "-x509", *new_key, *name, "-keyout", "other.pem", "-out", "unused.pem")
    openssl("ec", "-in", "k.pem", "-aes128", "-passout", "pass:x", "-out", "locked.pem")
    (folder / "junk.pem").write_text("junk")
    return folder


def listener(files: Path, **options: Any) -> Listener:
    paths = {name: str(files / value) for name, value in options.items()}
    return Listener(ServerConfig(host="127.0.0.1", port=0, **paths))


def test_a_certificate_and_its_key_are_taken(files: Path) -> None:
    found = listener(files, ssl_certfile="c.pem", ssl_keyfile="k.pem")
    assert isinstance(found.tls, ssl.SSLContext)
    assert found.url.startswith("https://")
    found.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl_certfile": "junk.pem", "ssl_keyfile": "k.pem"}, "--ssl-certfile and --ssl-keyfile"),
        ({"ssl_certfile": "c.pem"}, "--ssl-certfile and --ssl-keyfile"),
        ({"ssl_certfile": "c.pem", "ssl_keyfile": "other.pem"}, "KEY_VALUES_MISMATCH|mismatch"),
        ({"ssl_certfile": "c.pem", "ssl_keyfile": "locked.pem"}, "encrypted"),
        (
            {"ssl_certfile": "c.pem", "ssl_keyfile": "k.pem", "ssl_ca_certs": "junk.pem"},
            "--ssl-ca-certs",
        ),
    ],
)
def test_bad_files_are_named_in_one_line(files: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        listener(files, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"ssl_ca_certs": __file__}, {"ssl_cert_reqs": 2}])
def test_clients_are_not_checked_over_plain_http(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="need --ssl-certfile"):
        ServerConfig(**options)


@pytest.mark.parametrize("text", ["junk", "[1]", '{"version": 7}'])
def test_a_bad_log_configuration_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="--log-config-file") as error:
        # No engine is looked for before the log can be written.
        run_server(None, ServerConfig(log_config_file=str(path)))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
