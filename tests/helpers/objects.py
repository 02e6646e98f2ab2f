"""An object store on this machine that speaks as much of S3 as clients of stores ask for; it knows one key."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KEY, SECRET = "tester", "secret"
WRITTEN = "2026-01-01T00:00:00.000Z"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if not self._allowed():
            return
        if "list-type" in query:
            self._answer(200, self._listed(query), kind="application/xml")
            return
        content = self.server.objects.get(self._key())
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif requested := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            part = content[int(requested[1]) : int(requested[2]) + 1]
            end = int(requested[1]) + len(part) - 1
            self._answer(206, part, {"Content-Range": f"bytes {requested[1]}-{end}/{len(content)}"})
        else:
            self._answer(200, content)

    do_HEAD = do_GET

    def do_PUT(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._allowed():
            self.server.objects[self._key()] = content
            self._answer(200)

    def do_POST(self):
        requested = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self._allowed():
            bucket = self._key().split("/")[0]
            keys = re.findall(r"<Key>(.*?)</Key>", requested)
            for key in keys:
                self.server.objects.pop(f"{bucket}/{key}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), kind="application/xml")

    def _key(self):
        return unquote(urlsplit(self.path).path).strip("/")

    def _allowed(self):
        if f"Credential={KEY}/" in self.headers.get("Authorization", ""):
            return True
        self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        return False

    def _listed(self, query):
        """The keys that begin with the prefix, and the folders in which others of them are."""
        bucket, prefix = self._key(), query.get("prefix", [""])[0]
        inside = sorted(key[len(bucket) + 1 :] for key in self.server.objects if key.startswith(f"{bucket}/{prefix}"))
        below = {key: key[len(prefix) :].partition("/") for key in inside}
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>{WRITTEN}</LastModified><ETag>x</ETag>"
            f"<Size>{len(self.server.objects[f'{bucket}/{key}'])}</Size></Contents>"
            for key, (_, divided, _) in below.items()
            if not divided
        ]
        folders = sorted({f"{prefix}{name}/" for name, divided, _ in below.values() if divided})
        rows += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders]
        head = f"<Name>{bucket}</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{''.join(rows)}</ListBucketResult>".encode()

    def _answer(self, status, content=b"", headers=(), kind="application/octet-stream"):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "ETag": '"x"', **dict(headers)}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def served():
    """The server; `objects` by bucket and key, `url` its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.objects, server.url = {}, f"http://127.0.0.1:{server.server_port}"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(server):
    """What a client is told by its environment."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }
