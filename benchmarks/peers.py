"""`coop_jax` beside what else there is, on one GPT-2: bytes, flops and time in ratios.

    JAX_PLATFORMS=cpu python -m benchmarks.peers --json peers.json
    JAX_PLATFORMS=cpu python -m benchmarks.peers --part xla --json xla.json
    OTHER/python benchmarks/peers_torch.py torch.json
    python -m benchmarks.peers --read peers.json xla.json torch.json --figure peers.svg

* `jax.checkpoint` with each usual policy, around every block and every pair of blocks;
* the online planners `dtr`, `dte` and `coop-online`, on the same emission as `coop`;
* XLA's own HloRematerialization (`--part xla`), which exists on GPU alone: compiled
  for a described card whose memory is such that the pass aims at the bytes asked for,
  beside `coop_jax` on the same card, bytes only;
* PyTorch's `activation_memory_budget` on the same architecture, by a script that runs
  in an environment of its own (see there).

All numbers are over those of the same framework's own step as it is.
"""

import argparse
import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from coop_jax._loops.loop_solve import LoopWorkbench
from coop_jax._measure import memory_use

from . import frontier, h200
from .frontier_rows import CHECKPOINT, PLAIN, Row
from .models import POLICIES, gpt2

_ONLINE = ("coop-online", "dtr", "dte")
_SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
_XLA_PARTS = (2, 3)
_REMAT_CLONE = re.compile(r"\.remat[\w.]* = ")


@dataclass(frozen=True, slots=True)
class Peer:
    """One setting of one peer; ratios to the same framework's step as it is.

    Attributes:
      system: what plans; "XLA", "coop on H200" and "PyTorch" stand beside a baseline of
        their own.
      setting: a policy, or the share asked for.
      asked: bytes asked for, or None where the setting is not in bytes.
      bytes: measured, or None if the system did not get there.
      flops: of the compiled step, where there is a count.
      time: median of ratios within a round, where it ran.
      note: what else to know.
    """

    system: str
    setting: str
    asked: float | None
    bytes: float | None
    flops: float | None = None
    time: float | None = None
    note: str = ""


def measure_cpu(repeats: int, shares: Sequence[float] = _SHARES) -> list[Peer]:
    """Policies, online planners and `coop` on two CPU cores."""
    settings = frontier.Settings(shares=tuple(shares), repeats=repeats)
    sweep = frontier.Sweep(gpt2.build(), settings)
    for policy in POLICIES:
        sweep.add_checkpoint(policy, gpt2.build(policy=policy))
        sweep.add_checkpoint(f"{policy}, pairs", gpt2.build(policy=policy, blocks=2))
    most = sweep.unplanned.total
    hand = [e.row for e in sweep.entries if e.row.program == CHECKPOINT]
    for row in hand:
        sweep.add_coop(row.budget, row.measured)
    for share in shares:
        sweep.add_coop(f"{share:g}", int(share * most))
    for policy in _ONLINE:
        bench = LoopWorkbench(sweep.step, policy=policy)
        for share in shares:
            sweep.add_coop(f"{share:g}", int(share * most), policy, bench)
    if repeats:
        sweep.run()
    rows = [entry.row for entry in sweep.entries]
    plain = next(row for row in rows if row.program == PLAIN)
    return [peer_of(row, plain) for row in rows]


def peer_of(row: Row, plain: Row) -> Peer:
    """A row of the frontier as ratios to the step as it is."""
    assert plain.measured
    requested, measured = row.requested, row.measured
    return Peer(
        "jax.checkpoint" if row.program == CHECKPOINT else row.program,
        row.budget,
        None if requested is None else requested / plain.measured,
        None if measured is None else measured / plain.measured,
        row.overhead,
        row.time_over(plain),
        "not reached" if measured is None else "",
    )


def measure_xla(parts: Sequence[int] = _XLA_PARTS) -> list[Peer]:
    """XLA's own pass and `coop` on a described card, with fractions of the temporaries.

    XLA's pass does not recompute library calls, and its flops are not counted: of a
    program compiled for a card that is not there XLA gives no cost analysis.
    """
    model = gpt2.build()
    settings = frontier.Settings(backend="h200", repeats=0)
    sweep = frontier.Sweep(model, settings)
    fixed, temp, most = (
        sweep.unplanned.fixed, sweep.unplanned.temp, sweep.unplanned.total,
    )  # fmt: skip
    peers = []
    for part in parts:
        asked, label = fixed + temp // part, f"temp/{part}"
        card = h200.memory_for_remat(temp // part, fixed)
        args = h200.on_device(model.abstract_args(), card)
        jitted = jax.jit(model.step, donate_argnums=model.donate_argnums)
        compiled = jitted.lower(*args).compile(h200.COMPILER_OPTIONS)
        clones = len(_REMAT_CLONE.findall(compiled.as_text() or ""))
        reached = memory_use(compiled).total / most
        note = f"{clones} instructions run again"
        peers.append(Peer("XLA", label, asked / most, reached, note=note))
        sweep.add_coop(label, asked)
        row = sweep.entries[-1].row
        measured = None if row.measured is None else row.measured / most
        peers.append(Peer("coop on H200", label, asked / most, measured, row.overhead))
    return peers


# Table and figure


_HEADINGS = ("system", "setting", "asked", "bytes", "flops", "time", "note")


def table(peers: Sequence[Peer]) -> str:
    """The peers as a markdown table."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|---|" + "--:|" * 4 + "---|"]
    for peer in peers:
        ratios = (peer.asked, peer.bytes, peer.flops, peer.time)
        cells = [peer.system, peer.setting or "-"]
        cells += ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        lines.append("| " + " | ".join([*cells, peer.note]) + " |")
    return "\n".join(lines)


def draw(peers: Sequence[Peer], path: str | pathlib.Path) -> None:
    """Time against bytes, both as ratios, one mark per setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # No date and no random names, so that the same numbers make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    systems = dict.fromkeys(peer.system for peer in peers)
    for system, marker in zip(systems, "oosD^v<>Px*"[: len(systems)], strict=False):
        points = sorted(
            (peer.bytes, peer.time)
            for peer in peers
            if peer.system == system
            and peer.bytes is not None
            and peer.time is not None
        )
        if points:
            style = "" if system == "jax.checkpoint" else "-"
            axes.plot(*zip(*points, strict=True), style + marker, label=system)
    axes.axhline(1.0, color="gray", linewidth=0.5)
    axes.set_xlabel("bytes over those of the framework's own step as it is")
    axes.set_ylabel("time over the same")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if str(path).endswith("svg") else {})
    pyplot.close(figure)


def write(path: str | pathlib.Path, peers: Sequence[Peer]) -> None:
    """Writes peers as JSON."""
    content = [dataclasses.asdict(peer) for peer in peers]
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n")


def read(path: str | pathlib.Path) -> list[Peer]:
    """Peers from a file by `write`, or by `peers_torch.py`."""
    return [Peer(**peer) for peer in json.loads(pathlib.Path(path).read_text())]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, or reads what was measured, and prints one table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").split("\n")[0]
    )
    option = parser.add_argument
    option("--part", choices=("cpu", "xla"), default="cpu")
    option("--read", metavar="FILE", nargs="+", help="show these, measure nothing")
    option("--repeats", type=int, default=9, help="rounds of timing")
    option("--json", metavar="FILE", help="write what was measured here as well")
    option("--figure", metavar="FILE.svg", help="draw time against bytes")
    chosen = parser.parse_args(arguments)
    if chosen.read:
        peers = [peer for path in chosen.read for peer in read(path)]
    elif chosen.part == "xla":
        peers = measure_xla()
    else:
        peers = measure_cpu(chosen.repeats)
    if chosen.json:
        write(chosen.json, peers)
    if chosen.figure:
        draw(peers, chosen.figure)
    print(table(peers))


if __name__ == "__main__":
    main()
