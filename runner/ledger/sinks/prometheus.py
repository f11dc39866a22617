"""A Prometheus endpoint on each node: `http://<node>:<port>/metrics`, text format 0.0.4, standard library only."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from runner.errors import InputError
from runner.ledger.codec import Stamp
from runner.ledger.events import Event
from runner.ledger.sinks.stats import LiveStats

_PATIENCE = 30.0  # seconds
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


class PrometheusSink:
    """Serves a run's figures so far.

    Args:
        port: TCP port, on all interfaces: the scraper is on another machine. 0 takes a free one.
        run: value of the label `run` of every sample.

    Raises:
        InputError: the port is taken.
    """

    def __init__(self, port: int, run: str) -> None:
        self._stats = LiveStats()
        self._run = run
        self._lock = threading.Lock()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE  # who connects and asks for nothing must not keep a thread for ever

            def do_GET(self) -> None:
                found = self.path.split("?")[0] == "/metrics"
                body = sink.render().encode() if found else b"metrics are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _CONTENT_TYPE if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(
                self, format: str, *args: object
            ) -> None:  # a scrape every few seconds is no news
                pass

        try:
            self._server = ThreadingHTTPServer(("", port), Handler)
        except OSError as error:
            message = (
                f"output.live.prometheus_port: {port} cannot be served: {error.strerror}; choose another port"
            )
            raise InputError(message) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    def consume(self, event: Event, stamp: Stamp, fresh: bool) -> None:
        """Take one event; older ones count, too: the figures are the run's, not the command's."""
        with self._lock:
            self._stats.consume(event, stamp)

    def flush(self) -> None:
        """Nothing to do: a scrape reads the current figures."""

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def render(self) -> str:
        """The page that is scraped."""
        with self._lock:
            return "".join(_metric(*metric, run=self._run) for metric in self._metrics())

    def _metrics(self) -> list[tuple[str, str, str, list[Sample]]]:
        s = self._stats

        def one(value: float | None) -> list[Sample]:
            return [] if value is None else [({}, float(value))]

        def by(label: str, counts: Iterable[tuple[str, int]]) -> list[Sample]:
            return [({label: key}, float(count)) for key, count in sorted(counts)]

        return [
            ("nvrx_step", "gauge", "Last finished optimiser step.", one(s.step)),
            ("nvrx_training", "gauge", "1 while steps are made, 0 between a fault and the next step.", one(s.training)),
            ("nvrx_loss", "gauge", "Loss of the last step.", one(s.loss)),
            ("nvrx_learning_rate", "gauge", "Learning rate of the last step.", one(s.lr)),
            ("nvrx_grad_norm", "gauge", "Gradient norm of the last step.", one(s.grad_norm)),
            ("nvrx_tokens_per_second", "gauge", "Tokens of the whole job a second, last steps since the last restart, "
             "without stalls.", one(s.tokens_per_second)),
            ("nvrx_useful_steps", "gauge", "Steps whose result is kept so far.", one(s.useful_steps)),
            ("nvrx_useful_seconds", "gauge", "Time of those steps without stalls.", one(s.useful_seconds)),
            ("nvrx_replayed_steps_total", "counter", "Finished steps whose result was lost.", one(s.replayed_steps)),
            ("nvrx_replayed_seconds_total", "counter", "Time of those steps.", one(s.replayed_seconds)),
            ("nvrx_stall_seconds_total", "counter", "Time that training waited for checkpoints and snapshots.",
             one(s.stall_seconds)),
            ("nvrx_snapshots_total", "counter", "Snapshots in memory.", one(s.snapshots)),
            ("nvrx_saves_total", "counter", "Durable saves, by outcome, that ranks of this node reported.",
             by("outcome", s.saves.items())),
            ("nvrx_last_saved_step", "gauge", "Step of the newest committed checkpoint.", one(s.last_saved)),
            ("nvrx_faults_injected_total", "counter", "Injected faults on this node, by type.",
             by("type", s.faults.items())),
            ("nvrx_restarts_total", "counter", "Restarts, by who restarted: inprocess, launcher, command.",
             by("by", s.restarts.items())),
            ("nvrx_recoveries_total", "counter", "Faults after which a step was finished again.", one(s.recoveries)),
            ("nvrx_recovery_seconds_total", "counter", "Time from those faults to the next finished step.",
             one(s.recovery_seconds)),
            ("nvrx_wall_seconds", "gauge", "Time since the run's first command began.", one(s.wall())),
            ("nvrx_training_goodput", "gauge", "Useful time / wall time so far.", one(s.goodput())),
        ]  # fmt: skip


def _metric(name: str, kind: str, about: str, samples: list[Sample], *, run: str) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        text = ",".join(f'{key}="{_escape(label)}"' for key, label in {"run": run, **labels}.items())
        lines.append(f"{name}{{{text}}} {_number(value)}")
    return "\n".join(lines) + "\n" if samples else ""


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
