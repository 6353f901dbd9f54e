"""A service under load, under nonsense, and killed: `bayesrule serve` on the digits as a table of 64 columns.

    python benchmarks/serving.py --out docs/results

Requests of 10 rows come at a fixed rate, over connections that are kept, whether or not the last ones are answered; the
time of one is counted from when it was due. The rate is raised as long as 99 of 100 trial requests are answered within
50 ms. All the requests are sent at the highest rate that held; where they do not hold it, again at the next lower one,
and so on, since a trial is short and may be lucky. Then each of 500 malformed requests must get an error in 4xx with a
sentence. Then the service is stopped (SIGTERM) and killed (SIGKILL) while it answers: a response is whole, by its
length, or none of it came. Client and service share the processors, on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

from bayesrule.files import write_atomically
from bayesrule.report import provenance

BAR = 0.05  # seconds, of 99 of 100 requests
RATES = (5, 10, 20, 30, 40, 50, 60, 80, 100)  # requests per second
TRIAL = 300  # requests at each rate: a single pause of the machine is not the 99th of 100
CONNECTIONS = 8
HALVES = 4  # of each way to end it
Answer = tuple[int, bytes]


class HalfAnswer(Exception):
    """A response of which a part came."""


def table(folder: Path) -> pd.DataFrame:
    """The digits, a column for each pixel, in a file."""
    digits = load_digits()
    frame = pd.DataFrame(digits.data.astype(int), columns=[f"pixel_{i}" for i in range(64)])
    frame["digit"] = digits.target
    frame.to_csv(folder / "digits.csv", index=False)
    return frame.drop(columns="digit")


@contextlib.contextmanager
def service(run: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A service in a process of its own: its port, and the process."""
    line = [sys.executable, "-m", "bayesrule", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.search(r"127\.0\.0\.1:(\d+)", said)
    if found is None:
        raise RuntimeError(f"no service: {said}{process.stderr.read()}")
    try:
        yield int(found[1]), process
    finally:
        process.kill()
        process.wait()


def processor_seconds(pid: int) -> float:
    """Of a process so far; Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(body: bytes, kind: str = "application/json", path: str = "/predict", method: str = "POST") -> bytes:
    """An HTTP request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def response(reader: asyncio.StreamReader) -> Answer:
    """A whole response; `ConnectionError` if nothing of one came, `HalfAnswer` if less than all."""
    head = b""
    try:
        while not head.endswith(b"\r\n\r\n"):
            line = await reader.readline()
            if not line:
                raise HalfAnswer if head else ConnectionError
            head += line
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length is None:
            raise HalfAnswer
        return int(head.split()[1]), await reader.readexactly(int(length[1]))
    except asyncio.IncompleteReadError as error:
        raise HalfAnswer from error
    except OSError as error:
        raise (HalfAnswer if head else ConnectionError) from error


async def loaded(port: int, bodies: list[bytes], rate: float, count: int) -> dict[str, Any]:
    """``count`` requests at a rate: milliseconds, errors, and the rate that came about."""
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    times, statuses = [], Counter[int]()
    began = time.perf_counter()

    async def one(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(due - time.perf_counter())
        connection = await free.get()
        connection[1].write(request(bodies[number % len(bodies)]))
        status, body = await response(connection[0])
        free.put_nowait(connection)
        times.append(time.perf_counter() - due)
        statuses[status] += len(json.loads(body)["predictions"]) == 10

    await asyncio.gather(*(one(number) for number in range(count)))
    lasted = time.perf_counter() - began
    while not free.empty():
        free.get_nowait()[1].close()
    middle, most = np.percentile(times, [50, 99])
    return {
        "asked rate": rate,
        "requests": count,
        "errors": count - statuses[200],
        "median ms": round(1e3 * float(middle), 1),
        "p99 ms": round(1e3 * float(most), 1),
        "rate": round(count / lasted, 1),
    }


def holds(found: dict[str, Any]) -> bool:
    """Whether 99 of 100 requests were answered in time, and none wrongly."""
    return found["p99 ms"] <= 1e3 * BAR and not found["errors"]


def highest(load: Callable[[float, int], dict[str, Any]], count: int) -> dict[str, Any]:
    """Trials at rising rates, then all requests at the highest rate that holds for them too, or else at the lowest.

    ``missed``: what came of all requests at rates that had held in a trial alone.
    """
    trials: list[dict[str, Any]] = []
    for rate in RATES:
        trials.append(load(rate, TRIAL))
        if not holds(trials[-1]):
            break
    held = [trial["asked rate"] for trial in trials if holds(trial)] or [RATES[0]]
    loads: list[dict[str, Any]] = []
    while held and not (loads and holds(loads[-1])):
        loads.append(load(held.pop(), count))
    return {"trials": trials, "missed": loads[:-1], "load": loads[-1]}


def nonsense(rows: list[dict[str, int]], count: int) -> Iterator[bytes]:
    """Malformed requests of all kinds."""
    chance = random.Random(0)
    good = json.dumps({"rows": rows[:2]}).encode()
    # a column that is constant is no input, and need not be there
    used = [name for name in rows[0] if len({row[name] for row in rows}) > 2]
    for number in range(count):
        row = dict(rows[number % len(rows)])
        name = chance.choice(used)
        short = {key: value for key, value in row.items() if key != name}
        kinds: list[bytes] = [
            request(good[: chance.randrange(1, len(good))]),
            request(bytes(chance.randrange(256) for _ in range(50))),
            request(json.dumps({"rows": [short]}).encode()),
            request(json.dumps({"rows": [{**row, name: "many"}]}).encode()),
            request(json.dumps({"rows": [{**row, name: [1, 2]}]}).encode()),
            request(json.dumps({"rows": [{**row, name: float("nan")}]}).encode()),
            request(json.dumps({"rows": [{**row, name: 10**400}]}).encode()),
            request(json.dumps({"rows": [row, number]}).encode()),
            request(json.dumps({"rows": {}}).encode()),
            request(json.dumps({"rows": [row], "level": 2}).encode()),
            request(json.dumps({"rows": [row], "more": number}).encode()),
            request(json.dumps({"rows": []}).encode()),
            request(b"[" * 5000),
            request(good, kind="text/plain"),
            request(good, path=f"/{number}"),
            request(b"", method="DELETE"),
            request(json.dumps({"rows": [{}] * 1001}).encode()),
        ]
        yield kinds[number % len(kinds)]


async def refused(port: int, requests: Iterator[bytes]) -> dict[str, Any]:
    """What malformed requests get."""
    statuses, clear = Counter[int](), 0
    for sent in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        status, body = await response(reader)
        writer.close()
        statuses[status] += 1
        clear += 400 <= status < 500 and len(json.loads(body)["error"]) > 10
    return {
        "requests": statuses.total(),
        "clear 4xx": clear,
        "by status": {str(s): statuses[s] for s in sorted(statuses)},
    }


async def ended(port: int, process: subprocess.Popen[str], how: signal.Signals, body: bytes) -> Counter[str]:
    """Responses to requests that are under way when the process gets a signal."""
    found: Counter[str] = Counter()

    async def one() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(request(body))
                status, _ = await response(reader)
                found["whole" if status == 200 else "refused"] += 1
        except HalfAnswer:
            found["half"] += 1
        except OSError:
            found["none"] += 1

    asking = [asyncio.create_task(one()) for _ in range(CONNECTIONS)]
    await asyncio.sleep(1)
    process.send_signal(how)
    await asyncio.wait_for(asyncio.gather(*asking), 60)
    return found


def main() -> None:
    """Fit, serve, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, run = Path(name), Path(name) / "run"
        rows = table(folder).to_dict("records")
        line = ["fit", str(folder / "digits.csv"), "--target", "digit", "--method", "swag", "--out", str(run)]
        subprocess.run([sys.executable, "-m", "bayesrule", *line], check=True, capture_output=True)
        bodies = [json.dumps({"rows": rows[start : start + 10]}).encode() for start in range(0, 1790, 10)]
        with service(run) as (port, process):
            asyncio.run(loaded(port, bodies, 5, 20))  # warm-up

            def load(rate: float, count: int) -> dict[str, Any]:
                told = asyncio.run(loaded(port, bodies, rate, count))
                print(told, flush=True)
                return told

            found = highest(load, args.requests)
            found["malformed"] = asyncio.run(refused(port, nonsense(rows, 500)))
            print(found["malformed"], flush=True)
        for how in (signal.SIGTERM, signal.SIGKILL):
            total: Counter[str] = Counter()
            for _ in range(HALVES):
                with service(run) as (port, process):
                    total += asyncio.run(ended(port, process, how, bodies[0]))
            found[how.name] = {kind: total[kind] for kind in ("whole", "refused", "none", "half")}
            print(how.name, found[how.name], flush=True)
    about = provenance(f"python benchmarks/serving.py --requests {args.requests}", seed=0)
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "serving.json", json.dumps(about | {"rows of a request": 10} | found, indent=1))


if __name__ == "__main__":
    main()
