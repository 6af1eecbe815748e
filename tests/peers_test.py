"""The table and the figure of peers, from rows and from a file."""

from pathlib import Path

import jax
import pytest

from benchmarks import h200, peers
from benchmarks.frontier_rows import CHECKPOINT, COOP, PLAIN, Row
from benchmarks.models import gpt2
from benchmarks.peers import Peer

PLAIN_ROW = Row("m", PLAIN, measured=200, flops=1.0, seconds=(1.0, 2.0, 4.0))
PEERS = [
    Peer("coop", "0.5", 0.5, 0.49, 1.02, 0.9),
    Peer("XLA", "temp/2", 0.5, 0.6, note="9 instructions run again"),
    Peer("PyTorch", "activation_memory_budget 0.5", None, 0.7, None, 1.1),
]


def test_a_row_becomes_ratios_to_the_step_as_it_is() -> None:
    row = Row(
        "m", COOP, "0.5", 100, 90, flops=1.1, seconds=(2.0, 4.0, 4.0)
    )  # fmt: skip
    assert peers.peer_of(row, PLAIN_ROW) == Peer("coop", "0.5", 0.5, 0.45, 1.1, 2.0)
    hand = Row("m", CHECKPOINT, "dots_saveable", measured=150, flops=1.0)
    found = peers.peer_of(hand, PLAIN_ROW)
    assert (found.system, found.asked, found.bytes) == ("jax.checkpoint", None, 0.75)


def test_bytes_that_were_not_reached_stay_in_the_table() -> None:
    found = peers.peer_of(Row("m", "dtr", "0.3", 60, floor=80), PLAIN_ROW)
    assert (found.asked, found.bytes, found.note) == (0.3, None, "not reached")
    assert "| dtr | 0.3 | 0.300 | - | - | - | not reached |" in peers.table([found])


def test_peers_survive_json_and_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    path, figure = tmp_path / "peers.json", tmp_path / "peers.svg"
    peers.write(path, PEERS)
    assert peers.read(path) == PEERS
    peers.main(["--read", str(path), "--figure", str(figure)])
    assert "| XLA | temp/2 | 0.500 | 0.600 | - | - | 9 ins" in capsys.readouterr().out
    drawn = figure.read_text()
    assert "<svg" in drawn
    peers.draw(PEERS, figure)
    assert figure.read_text() == drawn, "the same numbers make the same file"


def test_the_card_is_such_that_xla_aims_at_the_bytes() -> None:
    card = h200.memory_for_remat(temp=950, fixed=600)
    assert card * 0.8 - 600 == pytest.approx(1000, abs=1)


def test_pairs_of_blocks_are_checkpointed_as_one() -> None:
    def checkpoints(blocks: int) -> int:
        model = gpt2.build(policy="nothing_saveable", blocks=blocks)
        jaxpr = jax.make_jaxpr(model.step)(*model.abstract_args())
        return str(jaxpr).count("prevent_cse")

    assert checkpoints(2) * 2 == checkpoints(1)
    plain, pairs = gpt2.build(), gpt2.build(policy="dots_saveable", blocks=2)
    assert pairs.abstract_args() == plain.abstract_args()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
