"""An HTTP server on this machine that takes token ids, as vLLM and SGLang do."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class TokenServer:
    """An HTTP server in a thread. `answer(body)` gives what a POST to `path` is answered with: a JSON object, or (status, bytes)."""

    def __init__(self, path, answer, models=("tiny-prm",)):
        self.bodies = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                listed = models if isinstance(models, dict) else {"data": [{"id": m} for m in models]}
                self.send(listed if self.path == "/v1/models" else (404, b"no such page"))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                self.send(answer(body) if self.path == path else (404, b"no such page"))

            def send(self, reply):
                status, data = reply if isinstance(reply, tuple) else (200, json.dumps(reply).encode())
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
