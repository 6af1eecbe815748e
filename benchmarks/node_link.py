"""Plain computation graphs as planning problems: networkx's node-link JSON.

A node is an op with one output, an edge `source -> target` says that the target reads
the source's output. What nobody reads is a result of the graph and is kept to the end.
"""

import graphlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from coop_jax._planning.types import Op, Problem, Value

_EDGE_KEYS = ("edges", "links")


def read(path: str | pathlib.Path, cost: str, size: str) -> Problem:
    """The problem of the graph in a file.

    Nodes run in the order of the file where that is topological, and otherwise in a
    topological order that follows it where it can.

    Args:
      path: a file as `json.dump(networkx.node_link_data(graph))` writes it; edges under
        "edges" (networkx 3.4 and later) or "links".
      cost: the node attribute with an op's seconds, or any unit of work.
      size: the node attribute with its output's bytes, or any unit of memory.

    Raises:
      ValueError: the file is not such a graph, has a cycle, or a node lacks a number.
    """
    content = json.loads(pathlib.Path(path).read_text())
    edges_key = next((key for key in _EDGE_KEYS if key in content), None)
    if "nodes" not in content or edges_key is None:
        raise ValueError(
            f"{path} is not node-link JSON: it needs lists `nodes` and `edges` (or "
            f"`links`), and has {', '.join(content)}."
        )
    nodes = {_key(node["id"]): node for node in content["nodes"]}
    reads: dict[Any, list[Any]] = {node: [] for node in nodes}
    for edge in content[edges_key]:
        source, target = _key(edge["source"]), _key(edge["target"])
        if source not in nodes or target not in nodes:
            raise ValueError(
                f"edge {source} -> {target} joins nodes that are not there"
            )
        if source not in reads[target]:
            reads[target].append(source)
    order = _order(reads)
    number = {node: k for k, node in enumerate(order)}
    is_read = {source for sources in reads.values() for source in sources}
    ops, values = [], []
    for k, node in enumerate(order):
        inputs = tuple(sorted(number[source] for source in reads[node]))
        ops.append(Op(str(node), inputs, (k,), _number(nodes[node], cost)))
        bytes_ = round(_number(nodes[node], size))
        values.append(Value(str(node), bytes_, is_output=node not in is_read))
    return Problem(tuple(ops), tuple(values), alignment=1)


def _order(reads: Mapping[Any, Sequence[Any]]) -> list[Any]:
    """The order of the mapping if each comes after what it reads, else a sorted one."""
    seen = set()
    for node, sources in reads.items():
        if not seen.issuperset(sources):
            break
        seen.add(node)
    else:
        return list(reads)
    try:
        return list(graphlib.TopologicalSorter(reads).static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(map(str, error.args[1]))
        raise ValueError(f"the graph has a cycle, {cycle}") from None


def _key(identifier: Any) -> Any:
    """Identifiers of tuples come back from JSON as lists."""
    return tuple(identifier) if isinstance(identifier, list) else identifier


def _number(node: Mapping[str, Any], attribute: str) -> float:
    if not isinstance(node.get(attribute), int | float):
        there = ", ".join(key for key in node if key != "id") or "none"
        raise ValueError(
            f"node {node['id']} has no number `{attribute}`; its attributes: {there}. "
            "Name the right ones with --cost and --size."
        )
    return float(node[attribute])
