"""`bayesrule serve`: a run over HTTP, with the answers and the errors of the command line."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest

import bayesrule as br
from bayesrule.cli import serve
from bayesrule.cli.service import Limits, Metrics, Service, application

uvicorn = pytest.importorskip("uvicorn", reason="needs bayesrule[serve]")
pytest.importorskip("fastapi", reason="needs bayesrule[serve]")


@pytest.fixture(scope="module")
def houses(runs):
    return br.load_run(runs / "houses")


@pytest.fixture(scope="module")
def port(houses):
    """A service in a thread, with narrow limits."""
    service = Service(houses, Limits(bytes=20_000, rows=20, seconds=5))
    free = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(service, serve.page(service)), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [free]})
    thread.start()
    yield free.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def ask(port):
    def ask(method, path, body=None, kind="application/json"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(method, path, body, {"Content-Type": kind})
        response = connection.getresponse()
        text = response.read().decode()
        assert int(response.headers["Content-Length"]) == len(text.encode())
        connection.close()
        return response, text

    return ask


def rows(tables):
    frame = pd.read_csv(tables / "new.csv")
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def test_the_answers_of_the_command_line(ask, bayesrule, as_json, runs, tables):
    response, text = ask("POST", "/predict", json.dumps({"rows": rows(tables)}))
    assert response.status == 200
    assert json.loads(text)["predictions"] == as_json("predict", runs / "houses", tables / "new.csv")


def test_levels(ask, houses, tables):
    _, text = ask("POST", "/predict", json.dumps({"rows": rows(tables), "level": 0.5}))
    found = pd.DataFrame(json.loads(text)["predictions"])
    wanted = houses.predict(tables / "new.csv", level=0.5)
    pd.testing.assert_frame_equal(found[["lower_50", "upper_50"]], wanted[["lower_50", "upper_50"]])


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("{", 400, "the body must be JSON: "),
        (b"\xff", 400, "the body must be JSON: "),
        ("[" * 10_000, 400, "the body must be JSON: "),
        ("[1]", 400, "the body must be a JSON object with a list of rows"),
        ('{"rows": {}}', 400, "the body must be a JSON object with a list of rows"),
        ('{"rows": []}', 400, "rows must hold at least one row, got none"),
        ('{"rows": [7]}', 400, 'row 0 must be an object, {"column": value, ...}, got 7'),
        ('{"rows": [{"size": [1]}]}', 400, "row 0, column 'size' must be a text or a number, got [1]"),
        ('{"rows": [{"size": NaN}]}', 400, "NaN is no number of JSON: leave the cell out, or give null"),
        ('{"rows": [{"size": 1%s}]}' % ("0" * 400), 400, "column 'size' must be a finite number"),
        ('{"rows": [{"size": 1}]}', 400, "the table must have the column 'city', known from training"),
        ('{"rows": [{"size": "big", "city": "Rome", "<script>x</script>": 1}]}', 400, "column 'size' must hold finite"),
        ('{"rows": [{}], "level": 2}', 400, "level must be between 0 and 1, got 2: for 95 % give 0.95"),
        ('{"rows": [{}], "more": 2}', 400, "the body may hold rows and level, got also 'more'"),
        (json.dumps({"rows": [{}] * 21}), 413, "rows must be at most 20, got 21: send them in parts"),
        (" " * 20_001, 413, "the body must be at most 20000 bytes"),
    ],
)
def test_a_body_that_is_wrong(body, status, error, ask):
    response, text = ask("POST", "/predict", body)
    assert response.status == status
    assert error in json.loads(text)["error"]


def test_requests_that_are_wrong(ask, port):
    assert ask("POST", "/predict", "{}", kind="text/plain")[0].status == 415
    response, text = ask("GET", "/nowhere")
    assert response.status == 404
    assert json.loads(text) == {"error": "no such path: GET /, /about, /health or /metrics, or POST /predict"}
    assert ask("GET", "/predict")[0].status == 405
    with socket.create_connection(("127.0.0.1", port)) as slow:  # no length: in chunks, one too many
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + (b"1000\r\n" + b" " * 4096 + b"\r\n") * 6)
        assert slow.recv(100).startswith(b"HTTP/1.1 413")


def test_health_metrics_and_what_it_is_about(ask):
    assert json.loads(ask("GET", "/health")[1]) == {"status": "ok"}
    _, text = ask("GET", "/metrics")
    assert re.search(r'^bayesrule_requests_total\{path="/health",status="200"\} \d+$', text, re.MULTILINE)
    assert re.search(r"^bayesrule_rows_total \d+$", text, re.MULTILINE)
    about = json.loads(ask("GET", "/about")[1])
    assert about["target"] == "price"
    assert [column["name"] for column in about["columns"]] == ["size", "city", "<script>x</script>"]
    assert about["limits"] == {"bytes": 20_000, "rows": 20, "seconds": 5}


def test_the_page_loads_nothing_and_runs_no_name_of_a_column(ask):
    response, text = ask("GET", "/")
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script>x</script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert not re.search(r"(src|href)=|https?://", text)


def test_a_histogram_counts_up():
    metrics = Metrics()
    for seconds in (0.001, 0.03, 100.0):
        metrics.count("/predict", 200, seconds)
    buckets = [int(line.split()[1]) for line in metrics.text().splitlines() if "_bucket" in line]
    assert buckets[0] == 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3


@contextlib.contextmanager
def served(houses, limits):
    """A service of other limits: its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        server = uvicorn.Server(uvicorn.Config(application(Service(houses, limits), ""), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]})
        thread.start()
        try:
            yield free.getsockname()
        finally:
            server.should_exit = True
            thread.join(10)


def test_no_answer_in_time(houses, tables):
    with served(houses, Limits(seconds=1e-9)) as address:
        connection = http.client.HTTPConnection(*address, timeout=10)
        connection.request("POST", "/predict", json.dumps({"rows": rows(tables)}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status in (408, 503)
        assert "1e-09 s" in json.loads(response.read())["error"]
        connection.close()


def test_a_body_that_trickles_in_is_not_waited_for(houses, tables):
    """It comes byte by byte, each soon enough, and never ends; who asks meanwhile is answered."""
    with served(houses, Limits(seconds=0.5)) as address, socket.create_connection(address, timeout=10) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 1000\r\n\r\n")
        slow.settimeout(0.05)
        answer, began = b"", time.monotonic()
        while not answer and time.monotonic() < began + 10:
            slow.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                answer = slow.recv(1000)
        slow.settimeout(10)
        while b"}" not in answer:
            answer += slow.recv(1000)
        other = http.client.HTTPConnection(*address, timeout=10)
        assert ask_through(other, "GET", "/health") == {"status": "ok"}
        other.close()
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408")
    assert json.loads(body) == {"error": "the body must arrive in 0.5 s"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--max-rows", "0"], "--max-rows must be above 0, got 0"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
    ],
)
def test_what_is_asked_wrongly(options, error, bayesrule, runs):
    code, _, err = bayesrule("serve", runs / "houses", *options)
    assert code == 2
    assert error in err


def test_without_the_extra(bayesrule, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = bayesrule("serve", runs / "houses")
    assert code == 2
    assert "pip install 'bayesrule[serve]'" in err


@contextlib.contextmanager
def process(run):
    """A service in a process of its own, and its port."""
    line = [sys.executable, "-m", "bayesrule", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    try:
        yield process, int(re.search(r":(\d+):", process.stderr.readline())[1])
    finally:
        process.kill()
        process.communicate()


def test_a_process_stops_when_it_is_told_to(runs, tables):
    with process(runs / "houses") as (service, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert ask_through(connection, "GET", "/health") == {"status": "ok"}
        body = json.dumps({"rows": rows(tables)})
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        service.send_signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionError):  # of a request that was not read yet: no answer, and no half of one
            assert len(json.loads(connection.getresponse().read())["predictions"]) == 7
        connection.close()
        service.wait(60)


def test_a_process_that_is_killed_leaves_no_half_answer(runs, tables):
    """SIGKILL while four connections ask without a pause: each answer is whole, or none of it came."""
    body, found, many = json.dumps({"rows": rows(tables)}), [], threading.Event()

    def asking():
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            while True:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                found.append(outcome(connection))
                if len(found) >= 12:
                    many.set()
                if found[-1] != "whole":
                    return

    def asking_until_it_is_gone():
        with contextlib.suppress(ConnectionError):  # of a request that could not be sent
            asking()

    with process(runs / "houses") as (service, port):
        threads = [threading.Thread(target=asking_until_it_is_gone) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert many.wait(60)
        service.kill()
        for thread in threads:
            thread.join(60)
    assert found.count("whole") >= 12
    assert set(found) <= {"whole", "none"}


def outcome(connection):
    """What came of a request: a whole answer, none, or half of one that could be taken for it.

    The kernel may send the head of an answer before the process is killed. The head says how long the answer is, so
    that every client reports what breaks off as an error: none came.
    """
    try:
        content = connection.getresponse().read()
    except (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead):
        return "none"
    try:
        return "whole" if len(json.loads(content)["predictions"]) == 7 else "half"
    except ValueError:
        return "half"


def ask_through(connection, method, path):
    connection.request(method, path)
    return json.loads(connection.getresponse().read())
