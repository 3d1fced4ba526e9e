"""Certificates and keys: used where they are good, named in one line where they are not."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.running import Running, running
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.server.process.launch import run_server
from vllm_lite.server.process.listen import CertificateWatch, Listener, tls_context

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
    with pytest.raises(UsageError, match="needs --ssl-certfile"):
        ServerConfig(**options)


@pytest.mark.parametrize("text", ["junk", "[1]", '{"version": 7}'])
def test_a_bad_log_configuration_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="--log-config-file") as error:
        # No engine is looked for before the log can be written.
        run_server(EngineArgs(model="/nowhere", log_config_file=str(path)), ServerConfig())
    assert "\n" not in str(error.value)


async def served_serial(server: Running, ca: Path) -> str:
    """The serial number of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(ca))
    host, port = server.listener.socket.getsockname()[:2]
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


async def test_renewed_files_are_used_once_they_fit(files: Path, tmp_path: Path) -> None:
    for name in ("c.pem", "k.pem"):
        shutil.copy(files / name, tmp_path / name)
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    options: dict[str, Any] = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    async with running(FakeEngineClient(), **options) as server:
        context = server.listener.tls
        assert context is not None
        watch = CertificateWatch(context, ServerConfig(**options))
        first = await served_serial(server, certificate)
        assert not watch.refresh()
        shutil.copy(files / "unused.pem", certificate)
        assert not watch.refresh(), "the key of it is not there yet"
        assert await served_serial(server, files / "c.pem") == first
        shutil.copy(files / "other.pem", key)
        assert watch.refresh()
        assert await served_serial(server, certificate) != first
        certificate.unlink()
        assert not watch.refresh(), "what is gone replaces nothing"
        assert await served_serial(server, files / "unused.pem") != first


def test_ciphers_are_openssls_words(files: Path) -> None:
    paths = {"ssl_certfile": str(files / "c.pem"), "ssl_keyfile": str(files / "k.pem")}
    chosen = tls_context(ServerConfig(**paths, ssl_ciphers="ECDHE+AESGCM"))
    assert chosen is not None
    assert all("GCM" in c["name"] for c in chosen.get_ciphers() if c["protocol"] != "TLSv1.3")
    with pytest.raises(UsageError, match="--ssl-ciphers"):
        tls_context(ServerConfig(**paths, ssl_ciphers="none-such"))
