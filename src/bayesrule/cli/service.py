"""A finished run as an HTTP service: rows in JSON in, what ``bayesrule predict`` says of them in JSON out.

Nothing is kept of a request, and nothing in one is run. Its size, its rows and its time are bounded, and every answer
is made whole before its first byte is sent, with its length, so that half an answer can be told from a whole one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bayesrule.cli.loaded import LEVEL, LoadedRun
from bayesrule.cli.runs import Rows
from bayesrule.data.columns import AnswerColumn, CategoryColumn, NumberColumn
from bayesrule.jobs import threads

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

CELLS = str | float | int | bool | None
"""What a cell of a row may be; a cell that is not there is a missing value."""
MOST = 2**63
"""Whole numbers beyond this are no numbers of a table."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds, of the histogram of `Metrics`."""
CAUSED_BY_USERS = (ValueError, TypeError, FloatingPointError, MemoryError)


@dataclass(frozen=True)
class Limits:
    """What a request may ask for: ``bytes`` of its body, ``rows`` in it, and ``seconds`` until it is answered."""

    bytes: int = 2**20
    rows: int = 1000
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("bytes", "rows", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--max-{name} must be above 0, got {getattr(self, name):g}")


class Refused(ValueError):
    """A request that gets an error, with its HTTP status."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


@dataclass
class Metrics:
    """What was asked and how long it took, in the text format of Prometheus.

    >>> metrics = Metrics()
    >>> metrics.count("/predict", 200, 0.02)
    >>> print(metrics.text().splitlines()[2])
    bayesrule_requests_total{path="/predict",status="200"} 1
    """

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * len(BUCKETS))
    answered: int = 0
    seconds: float = 0.0
    rows: int = 0

    def count(self, path: str, status: int, seconds: float) -> None:
        """One request more."""
        self.requests[path, status] = self.requests.get((path, status), 0) + 1
        if path == "/predict":
            self.answered += 1
            self.seconds += seconds
            for index, most in enumerate(BUCKETS):
                self.buckets[index] += seconds <= most

    def text(self) -> str:
        """All of it."""
        lines = ["# HELP bayesrule_requests_total Requests by path and HTTP status."]
        lines.append("# TYPE bayesrule_requests_total counter")
        for (path, status), times in sorted(self.requests.items()):
            lines.append(f'bayesrule_requests_total{{path="{path}",status="{status}"}} {times}')
        lines.append("# HELP bayesrule_rows_total Rows that were predicted.")
        lines += ["# TYPE bayesrule_rows_total counter", f"bayesrule_rows_total {self.rows}"]
        lines.append("# HELP bayesrule_predict_seconds Time from request to answer.")
        lines.append("# TYPE bayesrule_predict_seconds histogram")
        for most, times in zip(BUCKETS, self.buckets, strict=True):
            lines.append(f'bayesrule_predict_seconds_bucket{{le="{most}"}} {times}')
        lines.append(f'bayesrule_predict_seconds_bucket{{le="+Inf"}} {self.answered}')
        lines.append(f"bayesrule_predict_seconds_sum {self.seconds:.6f}")
        lines.append(f"bayesrule_predict_seconds_count {self.answered}")
        return "\n".join(lines) + "\n"


class Service:
    """What a run answers."""

    def __init__(self, loaded: LoadedRun, limits: Limits | None = None) -> None:
        self.loaded, self.limits, self.metrics = loaded, limits or Limits(), Metrics()
        # one after the other: the interpreter's lock would make two at a time slower, each and together
        self._worker = ThreadPoolExecutor(1, "predict")

    def answer(self, body: bytes) -> str:
        """The answer to the body of a request for predictions, or an error that says what is wrong with it."""
        asked = _parsed(body)
        if not isinstance(asked, dict) or not isinstance(asked.get("rows"), list):
            raise Refused(400, 'the body must be a JSON object with a list of rows: {"rows": [...]}')
        if stray := sorted(asked.keys() - {"rows", "level"}):
            raise Refused(400, f"the body may hold rows and level, got also {stray[0]!r}: leave it out")
        given, level = asked["rows"], self._level(asked.get("level"))
        if not given:
            raise Refused(400, "rows must hold at least one row, got none")
        if len(given) > self.limits.rows:
            raise Refused(413, f"rows must be at most {self.limits.rows}, got {len(given)}: send them in parts")
        rows = self._inputs(given) if self.loaded.schema is None else self._rows(given)
        with threads(self.loaded.run.settings.threads):
            table = self.loaded.tabulate(rows, level)
        self.metrics.rows += len(table)
        return json.dumps({"predictions": table.to_dict("records")}, default=str)

    def _level(self, asked: Any) -> float:
        """The probability of the intervals of numbers."""
        if asked is None:
            return LEVEL
        if self.loaded.run.kind == "classes":
            raise Refused(400, f"level is for predictions of numbers, but the run predicts classes: got {asked!r}")
        if isinstance(asked, bool) or not isinstance(asked, int | float) or not 0 < asked < 1:
            raise Refused(400, f"level must be between 0 and 1, got {asked!r}: for 95 % give 0.95")
        return float(asked)

    def _rows(self, given: list[Any]) -> Rows:
        """Rows of a table, as objects with the names of its columns."""
        import pandas as pd

        for number, row in enumerate(given):
            if not isinstance(row, dict):
                raise Refused(400, f'row {number} must be an object, {{"column": value, ...}}, got {_shown(row)}')
            for name, cell in row.items():
                if isinstance(cell, int) and abs(cell) > MOST:
                    raise Refused(400, f"row {number}, column {name!r} must be a finite number, got {_shown(cell)}")
                if not isinstance(cell, CELLS):
                    raise Refused(400, f"row {number}, column {name!r} must be a text or a number, got {_shown(cell)}")
        return self.loaded.run.rows(pd.DataFrame(given), None, None, None)

    def _inputs(self, given: list[Any]) -> Rows:
        """Rows of numbers, for a run on a named data set."""
        shape = list(self.loaded.run.shape)
        try:
            x = torch.tensor(given, dtype=torch.float32)
        except (ValueError, TypeError) as error:
            raise Refused(400, f"each row must be numbers of shape {shape}: {error}") from error
        if list(x.shape[1:]) != shape:
            raise Refused(400, f"each row must be numbers of shape {shape}, got {list(x.shape[1:])}")
        return Rows(x)

    def about(self) -> dict[str, Any]:
        """What the page has to know: columns with an example of each, and the limits."""
        run = self.loaded.run
        columns = []
        for column in () if run.schema is None else run.schema.columns:
            about: dict[str, Any] = {"name": column.name}
            if isinstance(column, CategoryColumn):
                about["choices"] = list(column.categories)
            elif isinstance(column, AnswerColumn):
                about["choices"] = [column.no, column.yes]
            elif isinstance(column, NumberColumn):
                about["example"] = column.fill
            columns.append(about)
        return {
            "data": Path(run.settings.data).name,
            "target": None if run.schema is None else run.schema.target,
            "kind": run.kind,
            "classes": list(run.classes),
            "columns": columns,
            "shape": list(run.shape),
            "limits": {"bytes": self.limits.bytes, "rows": self.limits.rows, "seconds": self.limits.seconds},
        }

    async def predict(self, request: Request) -> str:
        """The answer to a request, in time."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the body must be JSON: send the header Content-Type: application/json")
        deadline = time.monotonic() + self.limits.seconds
        body = await _in_time(self._body(request), deadline, 408, f"the body must arrive in {self.limits.seconds:g} s")
        work = asyncio.get_running_loop().run_in_executor(self._worker, self.answer, body)
        says = f"no answer within {self.limits.seconds:g} s: the service is busy, or the rows are too many; try again"
        return await _in_time(work, deadline, 503, says)

    async def _body(self, request: Request) -> bytes:
        """All of the body, as long as it is not too long."""
        most = self.limits.bytes
        says = f"the body must be at most {most} bytes: send the rows in parts"
        told = request.headers.get("content-length", "0")
        if told.isdecimal() and int(told) > most:
            raise Refused(413, says)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise Refused(413, says)
            parts.append(part)
        return b"".join(parts)


async def _in_time(work: Awaitable[Any], deadline: float, status: int, says: str) -> Any:
    try:
        return await asyncio.wait_for(work, max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise Refused(status, says) from None


def _parsed(body: bytes) -> Any:
    """JSON, by the letter: Python would also take NaN and Infinity."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON: leave the cell out, or give null, for a missing value")

    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # of bytes that are no text, too
        raise Refused(400, f"the body must be JSON: {error}") from error


def _shown(value: Any) -> str:
    """A value in an error, if it is short."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def application(service: Service, page: str) -> FastAPI:
    """The service as an application: ``/``, ``/predict``, ``/about``, ``/health`` and ``/metrics``."""
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.exceptions import HTTPException

    # its own pages of documentation would be read from elsewhere
    app = FastAPI(title="bayesrule", docs_url=None, redoc_url=None, openapi_url=None)
    metrics = service.metrics

    async def index() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    async def about() -> Response:
        return JSONResponse(service.about())

    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    async def told() -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    async def predict(request: Request) -> Response:
        return Response(await service.predict(request), media_type="application/json")

    for path, get in (("/", index), ("/about", about), ("/health", health), ("/metrics", told)):
        app.add_api_route(path, get, methods=["GET"], response_class=Response)
    # FastAPI looks the types of parameters up by name, which it finds in no function
    predict.__annotations__ = {"request": Request, "return": Response}
    app.add_api_route("/predict", predict, methods=["POST"], response_class=Response)
    paths = ("/", "/about", "/health", "/metrics", "/predict")

    async def counted(request: Request, go: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        response = await go(request)
        path = request.url.path if request.url.path in paths else "other"  # names from outside would grow without end
        metrics.count(path, response.status_code, time.perf_counter() - began)
        return response

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status if isinstance(error, Refused) else 400
        return JSONResponse({"error": " ".join(str(error).split())}, status)

    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the service failed; its log says why"}, 500)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        hint = "GET /, /about, /health or /metrics, or POST /predict"
        says = f"{request.method} is not for this path: {hint}" if error.status_code == 405 else f"no such path: {hint}"
        return JSONResponse({"error": says}, error.status_code, error.headers)

    app.middleware("http")(counted)
    for kind in CAUSED_BY_USERS:
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(Exception, failed)
    return app


POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
"""What the page may load: nothing from elsewhere."""
