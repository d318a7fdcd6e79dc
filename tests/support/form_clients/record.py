"""Records how clients write forms: `python -m tests.support.form_clients.record`.

Each client sends the same form, of a file and some texts with odd names, to a server of this
script, which writes it to `tests/data/forms`: a line with the Content-Type, then the body. Needed
are Go, Java with the jars of JARS, Node, curl and Chromium (Debian's `golang-go default-jdk
libhttpmime-java libhttpclient5-java libslf4j-java libokhttp-java libspring-web-java nodejs curl
chromium`); programs that are missing are named. The tests need the records alone.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import httpx2
import openai
import requests

from tests.support.browser import CHROMIUM, browsing

HERE = Path(__file__).parent
RECORDS = HERE.parents[1] / "data" / "forms"
JARS = (
    *("httpmime", "httpclient", "httpcore", "okhttp", "okio", "commons-codec", "commons-logging"),
    *("httpclient5", "httpcore5", "httpcore5-h2", "slf4j-api", "slf4j-nop"),
    *("spring3-web", "spring3-core", "spring3-beans"),
)
FILE_NAME = '12" naïve.wav'
SOUND = b"RIFF\0\r\n--\r\n"
TEXTS = {"model": "whisper-1", "language": "en", "prompt": "café", 'a"b': "1", "a\nb": "2"}


class Recorder(BaseHTTPRequestHandler):
    """Writes each form that is sent to `/NAME`; `/` is a page of the same origin."""

    def do_POST(self) -> None:
        """Write a form."""
        if self.headers["Transfer-Encoding"]:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.headers["Content-Type"].encode("latin-1")
        name = self.path.strip("/").partition("/")[0]
        (RECORDS / f"{name}.form").write_bytes(kind + b"\r\n" + body)
        self._answer(b"{}", "application/json")

    def do_GET(self) -> None:
        """Answer with the page or its script."""
        is_script = self.path == "/forms.mjs"
        body = (HERE / "forms.mjs").read_bytes() if is_script else b"<!doctype html>"
        self._answer(body, "text/javascript" if is_script else "text/html")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given: object) -> None:
        """Write nothing."""


def main() -> int:
    """Record all clients that are there; return 1 if one is not."""
    RECORDS.mkdir(exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    missing = []
    for client in (by_python, by_curl, by_go, by_java, by_node, by_chromium):
        try:
            client(url)
        except FileNotFoundError as error:
            missing.append(f"{client.__name__}: {error}")
    server.shutdown()
    server.server_close()
    sys.stdout.write("".join(f"not recorded {one}\n" for one in missing))
    return 1 if missing else 0


def by_python(url: str) -> None:
    """Send the form with the clients of the development environment."""
    files = {"file": (FILE_NAME, SOUND, "audio/wav")}
    requests.post(f"{url}/requests", data=TEXTS, files=files, timeout=10)
    httpx2.post(f"{url}/httpx", data=TEXTS, files=files)
    asyncio.run(_by_aiohttp(f"{url}/aiohttp"))
    with openai.OpenAI(api_key="x", base_url=f"{url}/openai_transcription") as client:
        client.audio.transcriptions.create(
            file=(FILE_NAME, SOUND), model="whisper-1", timestamp_granularities=["word", "segment"]
        )
    with openai.OpenAI(api_key="x", base_url=f"{url}/openai_edit") as client:
        images = [(f"{number}.png", b"\x89PNG", "image/png") for number in range(16)]
        client.images.edit(image=images, prompt="café", model="whisper-1", n=1, size="1024x1024")


async def _by_aiohttp(url: str) -> None:
    form = aiohttp.FormData()
    form.add_field("file", SOUND, filename=FILE_NAME, content_type="audio/wav")
    for name, text in TEXTS.items():
        form.add_field(name.replace("\n", ""), text)
    async with aiohttp.ClientSession() as session, session.post(url, data=form):
        pass


def by_curl(url: str) -> None:
    """Send the form with curl, with and without its older way of quoting names."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, FILE_NAME)
        file.write_bytes(SOUND)
        quoted = str(file).replace('"', '\\"')
        texts = [part for name, text in TEXTS.items() for part in ("-F", f"{name}={text}")]
        form = ["-F", f'file=@"{quoted}";type=audio/wav', *texts]
        _run("curl", "-s", *form, f"{url}/curl")
        _run("curl", "-s", "--form-escape", *form[:-2], f"{url}/curl_form_escape")
        _run("curl", "-s", "--form-escape", *form, f"{url}/curl_form_escape_line")
        sound = f'file=@"{quoted}";filename="a;b.wav"'
        typed = ["-F", sound, "-F", "model=whisper-1;type=text/plain"]
        _run("curl", "-s", *typed, f"{url}/curl_type")


def by_go(url: str) -> None:
    """Send the form with Go's mime/multipart."""
    _run("go", "run", str(HERE / "forms.go"), url)


def by_java(url: str) -> None:
    """Send the form with Apache's client, OkHttp, Spring and Java's own client."""
    jars = ":".join(f"/usr/share/java/{jar}.jar" for jar in JARS)
    _run("java", "-cp", jars, str(HERE / "Forms.java"), url)


def by_node(url: str) -> None:
    """Send the form with Node's FormData, which is undici's."""
    _run("node", str(HERE / "forms.mjs"), url)


def by_chromium(url: str) -> None:
    """Send the form with Chromium's FormData."""
    if not CHROMIUM.exists():
        raise FileNotFoundError(CHROMIUM)
    asyncio.run(_by_chromium(url))


async def _by_chromium(url: str) -> None:
    async with browsing() as chromium:
        page = await chromium.new_page()
        await page.goto(url)
        script = "async url => (await import('/forms.mjs')).send(url)"
        await page.evaluate(script, f"{url}/chromium_form_data")


def _run(program: str, *given: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(program)
    subprocess.run([found, *given], check=True, timeout=120, stdout=subprocess.PIPE)


if __name__ == "__main__":
    sys.exit(main())
