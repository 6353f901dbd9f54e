"""Answer requests for predictions over HTTP with a trained run, and show a page to try it in a browser.

POST /predict takes {"rows": [{"column": value, ...}, ...]} and gives {"predictions": [...]}, in the columns that
predict writes. GET / is the page, /about the columns, /health and /metrics (Prometheus) are for machines. Only this
computer can ask unless --host says otherwise. Ctrl-C or SIGTERM: requests that are under way are answered first.
"""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.cli import options
from bayesrule.cli.loaded import load_run
from bayesrule.cli.service import Limits, Service, application
from bayesrule.cli.terminal import say

EPILOG = """examples:
  bayesrule serve runs/houses
  bayesrule serve runs/houses --port 9000 --max-rows 100
  curl 127.0.0.1:8000/predict --json '{"rows": [{"size": 100, "city": "Rome"}]}'"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    default = Limits()
    parser.add_argument("run", metavar="RUN", help="the directory that bayesrule fit wrote")
    parser.add_argument("--host", default="127.0.0.1", metavar="NAME", help="who may ask: 0.0.0.0 is everyone")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="8000; 0 takes a free one")
    parser.add_argument("--max-bytes", type=int, default=default.bytes, metavar="N", help="of a request (1 MiB)")
    parser.add_argument("--max-rows", type=int, default=default.rows, metavar="N", help="of a request (1000)")
    parser.add_argument("--max-seconds", type=float, default=default.seconds, metavar="S", help="of a request (10)")
    options.device(parser, "the run's own")


def run(args: argparse.Namespace) -> None:
    """Load, listen, answer until told to stop."""
    if not 0 <= args.port < 2**16:
        raise ValueError(f"--port must be from 0 to 65535, got {args.port}")
    limits = Limits(args.max_bytes, args.max_rows, args.max_seconds)
    uvicorn = _uvicorn()
    service = Service(load_run(args.run, getattr(args, "device", None)), limits)
    app = application(service, page(service))
    config = uvicorn.Config(
        app, args.host, args.port, log_level="warning", server_header=False, limit_concurrency=200,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )  # fmt: skip
    socket = config.bind_socket()
    socket.listen(config.backlog)  # whoever reads the next line may ask at once
    where = f"http://{args.host}:{socket.getsockname()[1]}"
    if args.host not in LOOPBACK:
        say(f"anyone who reaches {args.host} may ask: there is no password, put a proxy with one in front")
    say(f"{args.run} answers at {where}: open it in a browser, stop with Ctrl-C")
    uvicorn.Server(config).run(sockets=[socket])
    say("stopped")


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ImportError("serve needs FastAPI and uvicorn: pip install 'bayesrule[serve]'") from error
    return uvicorn


def page(service: Service) -> str:
    """The page to try it: everything in one file, names from the table escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("bayesrule.cli", ""), autoescape=True)
    return environment.get_template("serve.html").render(about=service.about())
