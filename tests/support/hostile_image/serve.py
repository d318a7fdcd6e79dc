"""HTTP server of a hostile image: `POST /attack/NAME` attacks, `GET /lie/NAME` answers wrongly."""

import http.server
import json
import os
import signal
import threading

import answers
import hoarding
import host
import inside
import kernel
import network

ATTACKS = {
    **{**network.ATTACKS, **host.ATTACKS, **hoarding.ATTACKS, **kernel.ATTACKS},
    **inside.ATTACKS,
}


INSTANCE = os.urandom(8).hex()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/lie/"):
            self.close_connection = True
            answers.LIES[self.path.removeprefix("/lie/")](self.wfile)
        else:
            self.answer(INSTANCE)

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        ended = threading.Event()
        beats = threading.Thread(target=self.beat, args=(ended,), daemon=True)
        beats.start()
        try:
            said = ATTACKS[self.path.removeprefix("/attack/")](order)
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            said = {"failed": repr(error)}
        ended.set()
        beats.join()
        self.chunk(json.dumps(said).encode())
        self.wfile.write(b"0\r\n\r\n")

    def beat(self, ended):
        """Send spaces during an attack, so that no time limit of the exchange ends it."""
        while not ended.wait(0.3):
            self.chunk(b" ")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def answer(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


if __name__ == "__main__":
    for ignored in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    os.write(2, b"hostile from the start\n")
    inside.SERVER.append(Server(("127.0.0.1", int(os.environ["PORT"])), Handler))
    inside.serve()
    threading.Event().wait()
