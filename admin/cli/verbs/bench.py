"""fnctl bench."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from admin.cli.completion import function_names
from admin.cli.options import (
    RequestHeaders,
    RequestMethod,
    RequestPath,
    Session,
    connected,
)
from admin.client import routes

if TYPE_CHECKING:
    from admin.cli.bench.benchmark import Benchmark, Options, Outcome, Progress
    from admin.cli.bench.payloads import Request, Source
    from admin.cli.bench.points import Limits, Point


DRAW_S: Final = 0.5
"""Min seconds between two drawings of the progress, each of which takes about 1 ms from a load."""


class Gaps(StrEnum):
    """Gaps between the calls of an open load."""

    POISSON = "poisson"
    FIXED = "fixed"


Numbers = "N,N,..."
Batch = Annotated[
    str,
    typer.Option("-b", "--batch", metavar=Numbers, help="Rows per call (default: the input's)."),
]
Concurrency = Annotated[
    str, typer.Option("-c", "--concurrency", metavar=Numbers, help="Calls at once.")
]
Seconds = Annotated[float, typer.Option(metavar="S", help="Seconds of each point.")]
Warmup = Annotated[
    float, typer.Option(metavar="S", help="Seconds of warm-up before each point, not counted.")
]
Requests = Annotated[int, typer.Option(metavar="N", help="Max counted calls of each point.")]
Total = Annotated[float, typer.Option(metavar="S", help="Max seconds of the whole benchmark.")]
Timeout = Annotated[float, typer.Option(metavar="S", help="Max seconds of one call.")]
Rate = Annotated[
    float,
    typer.Option(metavar="PER_S", help="Open load: calls start at this rate, on -c connections."),
]
Arrivals = Annotated[Gaps, typer.Option(help="Gaps between calls of an open load.")]
Cold = Annotated[
    int, typer.Option(metavar="N", help="First put the function to sleep and call it, N times.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Put the function to sleep even if others call it.")
]
Input = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Input to send (default: the sample).")
]
MediaType = Annotated[str, typer.Option("--type", metavar="TYPE", help="Content type of the file.")]
Body = Annotated[
    str | None,
    typer.Option("-d", "--body", metavar="TEXT|@FILE", help="Body of a request to a server."),
]
JsonInputs = Annotated[
    bool, typer.Option("--json-inputs", help="Send tensors as JSON, not in the binary form.")
]
Processes = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=64, hidden=True, help="No effect: one process makes the load."
    ),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the figures to FILE, as JSON.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.png", help="Draw the figures (needs fngate[bench]).")
]


@connected
def bench(  # noqa: PLR0913 - typer takes one parameter per option
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@REVISION]", help="Function to call.", autocompletion=function_names
        ),
    ],
    batch: Batch = "",
    concurrency: Concurrency = "1,8,32",
    seconds: Seconds = 5.0,
    warmup: Warmup = 1.0,
    requests: Requests = 1_000_000,
    total: Total = 600.0,
    timeout: Timeout = 60.0,
    rate: Rate = 0.0,
    arrivals: Arrivals = Gaps.POISSON,
    cold: Cold = 0,
    force: Force = False,
    input: Input = None,
    media: MediaType = "",
    json_inputs: JsonInputs = False,
    path: RequestPath = None,
    method: RequestMethod = None,
    headers: RequestHeaders = None,
    body: Body = None,
    processes: Processes = 1,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Measure a function's latency and throughput.

    Calls it with every combination of batch and concurrency. Each connection sends its next call
    after the answer to the last one; with --rate, calls start at planned times, independent of
    answers. Errors are counted by kind and have no latency. Ctrl-C ends it and prints the figures
    so far.

    The function's sample is sent, its tensors in the binary form; --input FILE is sent unchanged,
    unless --batch or --json-inputs is given. A server function gets its first sample, or the
    request of --path, -X, -H and -d, as of `fnctl invoke`.

    \b
    Examples:
      fnctl bench digits
      fnctl bench digits -b 1,8,32 -c 1,16,64 --seconds 10 --plot digits.png
      fnctl bench digits --rate 200 -c 64 --output digits.json
      fnctl bench digits --cold 10
      fnctl bench web --path /items?q=1 -H 'Accept: text/event-stream'
    """
    from admin.cli.bench.payloads import Source
    from admin.cli.bench.points import Limits
    from admin.cli.errors import INTERRUPTED
    from admin.cli.requests import Wanted

    if processes > 1:
        session.remark("note: --processes has no effect any more: one process makes the load")
    limits = Limits(seconds, warmup, requests, total, timeout)
    try:
        options = _options(limits, rate, arrivals, cold)
        points = _points(batch, concurrency, options, is_tunnelled=not session.client.is_direct)
        wanted = Wanted(path, method, tuple(headers or ()), body, media)
        source = Source(input, media, json_inputs, wanted)
        _check_files(source, output, plot)
        bodies = _bodies(session, name, points, source, (cold, force))
        outcome = _run(session, name, bodies, options, points)
        _deliver(session, (name, bodies, options, outcome), output, plot)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _options(limits: Limits, rate: float, arrivals: Gaps, cold: int) -> Options:
    """Return the options within their limits. Raises BadParameter."""
    from admin.cli.bench import points
    from admin.cli.bench.benchmark import Options

    points.check_number("--seconds", limits.seconds, 0.1, 86_400)
    points.check_number("--warmup", limits.warmup_s, 0, 3600)
    points.check_number("--requests", limits.calls_max, 1, points.CALLS_MAX)
    points.check_number("--total", limits.total_s, 0.1, 86_400)
    points.check_number("--timeout", limits.timeout_s, 0.1, 3600)
    points.check_number("--rate", rate, 0, points.RATE_MAX)
    points.check_number("--cold", cold, 0, points.COLD_MAX)
    return Options(limits, rate, arrivals is Gaps.POISSON, cold)


def _points(
    batch: str, concurrency: str, options: Options, *, is_tunnelled: bool
) -> tuple[Point, ...]:
    """Return the points, which fit into the limits. Raises BadParameter."""
    from admin.cli.bench import points
    from admin.cli.bench.benchmark import files_max

    batches = points.parse_numbers("-b", batch, points.BATCH_MAX) if batch else ()
    concurrencies = points.parse_numbers("-c", concurrency, points.CONCURRENCY_MAX)
    found = points.plan_points(batches, concurrencies)
    points.check_total(found, options.limits)
    points.check_descriptors(found, files_max(), is_tunnelled=is_tunnelled)
    return found


def _check_files(source: Source, output: Path | None, plot: Path | None) -> None:
    """Raise BadParameter for a content type of no file, and for files that could not be written at
    the end."""
    from admin.cli.bench.plot import check
    from admin.cli.inputs import wrong

    if source.media and source.file is None and source.wanted.body is None:
        what = "--input FILE, or -d for a server,"
        wrong("--type", f"expected {what} with it, got {source.media!r} alone")
    if plot is not None:
        check(plot)
    for option, path in (("--output", output), ("--plot", plot)):
        if path is not None and (reason := _why_not_writable(path.expanduser())):
            wrong(option, f"{path}: {reason}")


def _why_not_writable(path: Path) -> str:
    """Return "" if a file can be written, else why not. A file that is there is left as it is, and
    none is left where none was."""
    if not path.parent.is_dir():
        return "its folder does not exist"
    is_there = path.exists()
    if is_there and not path.is_file() and not path.is_dir():
        return ""  # a pipe's reader would take this for the end
    try:
        path.open("ab").close()
        if not is_there:
            path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _bodies(
    session: Session,
    name: str,
    points: tuple[Point, ...],
    source: Source,
    sleeping: tuple[int, bool],
) -> dict[int, Request]:
    """Return the requests by batch; refuse cold starts of a function in use."""
    from admin.cli.bench.cold_starts import check_alone
    from admin.cli.bench.payloads import checked_requests, describe
    from registry.names import parse_ref

    parse_ref(name)
    cold, force = sleeping
    if cold:
        check_alone(session.client.call(routes.FUNCTION, name.partition("@")[0]).value, force=force)
    batches = tuple(dict.fromkeys(point.batch for point in points if point.batch))
    described = describe(session.client, name)
    return checked_requests(session.client, name, described, source, batches)


def _run(
    session: Session,
    name: str,
    bodies: dict[int, Request],
    options: Options,
    points: tuple[Point, ...],
) -> Outcome:
    from admin.cli.bench.benchmark import Benchmark, raise_files

    raise_files()
    with _progress(quiet=session.as_json) as show:
        benchmark: Benchmark = Benchmark(session.client, name, bodies, options, show)
        return benchmark.run(points)


def _deliver(
    session: Session,
    measured: tuple[str, dict[int, Request], Options, Outcome],
    output: Path | None,
    plot: Path | None,
) -> None:
    """Print the outcome, write the files, and exit with the code of what went wrong."""
    from admin.cli.bench import benchmark, generator, report
    from admin.cli.bench.figures import notes
    from admin.cli.bench.plot import draw
    from admin.cli.errors import INTERRUPTED, REFUSED, UNREACHABLE

    name, bodies, _, outcome = measured
    data = benchmark.to_json(*measured)
    session.answer(data, lambda: report.render(name, bodies, outcome))
    for note in notes([one for _, one in outcome.points]):
        session.remark(f"note: {note}")
    if output is not None:
        _written(
            output, "--output", lambda path: path.write_text(json.dumps(data, indent=2) + "\n")
        )
    if plot is not None and outcome.points:
        _written(plot, "--plot", lambda path: draw(path, name, bodies, outcome.points))
    if outcome.stopped:
        session.remark(f"partial: {outcome.stopped}")
    if outcome.stopped == generator.INTERRUPTED:
        raise typer.Exit(INTERRUPTED)
    if outcome.is_away:
        raise typer.Exit(UNREACHABLE)
    if outcome.is_failed:
        raise typer.Exit(REFUSED)


def _written(path: Path, option: str, write: Callable[[Path], object]) -> None:
    try:
        write(path.expanduser())
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint=option) from error


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on stderr, if that is a terminal and not `quiet`. The load's own
    reports draw it, twice a second: a thread would delay calls at any time."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        rich.TextColumn("  {task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[calls]}"),
        rich.TimeElapsedColumn(),
    )
    hidden = quiet or not console.is_terminal
    bar = rich.Progress(
        *columns, console=console, transient=True, disable=hidden, auto_refresh=False
    )
    with bar:
        task = bar.add_task("", total=1.0, calls="")
        shown, drawn_s = "", 0.0

        def show(one: Progress) -> None:
            nonlocal shown, drawn_s
            failed = f", {one.errors:,} errors" if one.errors else ""
            calls = f"{one.answers:,} calls{failed}"
            is_due = one.what != shown or time.monotonic() - drawn_s >= DRAW_S
            bar.update(task, completed=one.share, description=one.what, calls=calls, refresh=is_due)
            if is_due:
                shown, drawn_s = one.what, time.monotonic()

        yield show
