"""A server with vLLM's options that fails on request: `fake_engine.py MODE OPTIONS…`.

Modes: serve; fall (serve, then end with an error); reject (the draft's loader fails); memory; silent (never ready);
orphan (serve, with a child without environment that outlives it, as vLLM's engine process does).
"""

import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
KEY = os.environ.get("VLLM_API_KEY", "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        authorized = self.headers.get("Authorization") == f"Bearer {KEY}"
        self.send_response(200 if authorized or self.path == "/health" else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        if MODE == "fall" and self.path == "/v1/models":
            print("ValueError: the cache is broken", flush=True)
            os._exit(3)

    def log_message(self, *_):
        pass


def main(mode, *options):
    print("starts with", KEY, flush=True)
    if mode == "reject":
        print("(EngineCore pid=7) ERROR KeyError: 'layers.0.fc.weight' is not in the model", flush=True)
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        sys.exit(1)
    if mode == "memory":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", flush=True)
        sys.exit(1)
    if mode == "silent":
        time.sleep(600)
    if mode == "orphan":
        child = subprocess.Popen(["env", "-i", sys.executable, "-c", "import time; time.sleep(600)"])
        print("child", child.pid, flush=True)
    port = int(options[options.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    if "--version" in sys.argv:
        print("fake 1.0")
    else:
        main(*sys.argv[1:])
