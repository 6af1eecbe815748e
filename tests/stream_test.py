"""Traces: a small one by eye, every mistake with its line, and what they ask for."""

import json
from pathlib import Path

import pytest

from coop_jax._planning.deadlines import Lifetimes
from coop_jax._planning.eviction import COOP, COPY_ON_WRITE, DTE, DTR, POLICIES, Policy
from coop_jax._planning.online import run_online
from coop_jax._planning.stream import (
    Alias,
    Call,
    Constant,
    Event,
    Release,
    TraceError,
    read,
    write,
)
from coop_jax._planning.validate import validate
from coop_jax._planning.workload import Workload, workload

DOCS = Path(__file__).absolute().parent.parent / "docs" / "trace-format.md"
HEADER = '{"format":"coop-trace","version":1}'


def numbered(*events: Event) -> list[tuple[int, Event]]:
    return list(enumerate(events, start=2))


def loaded(*events: Event) -> Workload:
    return workload(numbered(*events), alignment=1)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = [
        Constant("w", 8),
        Call("f", ("w",), {"a": 4, "b": 0}, ("w",), 1.5, 16, False, ("a",)),
        Alias("v", "a"),
        Release("a"),
    ]
    write(tmp_path / "trace.jsonl", events, "small")
    assert list(read(tmp_path / "trace.jsonl")) == numbered(*events)


def test_the_trace_of_the_documentation_is_one(tmp_path: Path) -> None:
    lines = [line[4:] for line in DOCS.read_text().splitlines() if line[:5] == "    {"]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    work = workload(read(path), alignment=1)
    assert [op.name for op in work.problem.ops] == ["matmul", "relu", "grad", "sgd"]
    # While grad runs: w and x, h, y and dw.
    assert work.needed == 4096 + 65536 * 3 + 4096


def test_the_documentation_names_every_key(tmp_path: Path) -> None:
    call = Call("f", ("w",), {"a": 4}, ("w",), 1.5, 16, False, ("a",))
    path = tmp_path / "trace.jsonl"
    write(path, [Constant("w", 8), call, Alias("v", "a"), Release("a")], "small")
    keys = {key for line in path.read_text().splitlines() for key in json.loads(line)}
    assert len(keys) == 17
    page = DOCS.read_text()
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


GOOD = [
    HEADER,
    '{"constant":"w","size":8}',
    '{"call":"f","inputs":["w"],"outputs":{"a":4},"cost":1}',
    '{"release":"a"}',
    '{"end":3}',
]


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (1, '{"format":"other","version":1}', "a trace begins with"),
        (1, '{"format":"coop-trace","version":2}', "version 2 is not 1"),
        (2, '{"constant":"w","size":-8}', "'size' is a whole number of bytes.* not -8"),
        (2, '{"constant":"w","size":true}', "whole number of bytes"),
        (2, f'{{"constant":"w","size":{2**64}}}', "'size' is at most"),
        (
            3,
            f'{{"call":"f","outputs":{{"a":4}},"cost":{10**400}}}',
            "'cost' is seconds",
        ),
        (2, '{"constant":"","size":1}', "'constant' is a name"),
        (2, '{"constant":"w","size":8,"colour":1}', "a constant has no colour"),
        (3, '{"call":"f","inputs":["q"],"cost":1}', "tensor 'q' is not known"),
        (3, '{"call":"f","inputs":"w","cost":1}', "'inputs' is a list of names"),
        (3, '{"call":"f","outputs":{"a":-1},"cost":1}', "'a' is a whole number"),
        (3, '{"call":"f","outputs":{"w":1},"cost":1}', "'w' is there already"),
        (3, '{"call":"f","outputs":{"a":4}}', "'cost' is seconds, at least 0"),
        (3, '{"call":"f","outputs":{"a":4},"cost":-1}', "'cost' is seconds"),
        (3, '{"call":"f","outputs":{"a":4},"cost":NaN}', "'cost' is seconds"),
        (3, '{"call":"f","cost":1,"kept":["w"]}', "'w' is kept, but not made here"),
        (3, '{"call":"f","cost":1,"mutates":["w","w"]}', "bytes only once"),
        (3, '{"call":"f","outputs":', "not JSON, or is cut off"),
        (3, "[1]", "one JSON object"),
        (3, "{}", "one of constant, call, alias, release"),
        (3, '{"alias":"v","of":"q"}', "'q' is not known"),
        (4, '{"release":"q"}', "'q' is not known"),
        (4, '{"constant":"c","size":1}', "constants come before the first call"),
        (5, '{"end":7}', "the end is that of 7 events, not of 3"),
        (5, '{"release":"a"}', "'a' was released in line 4"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, line: int, text: str, why: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([*GOOD[: line - 1], text, *GOOD[line:]]) + "\n")
    with pytest.raises(TraceError, match=f"^line {line}: .*{why}") as caught:
        workload(read(path))
    assert caught.value.line == line


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_file_that_is_cut_off_says_where(tmp_path: Path, count: int) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(line + "\n" for line in GOOD[:count]))
    with pytest.raises(TraceError, match=f"line {count + 1}: the file is cut off"):
        workload(read(path))


def test_nothing_may_follow_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([*GOOD, '{"release":"w"}']))
    with pytest.raises(TraceError, match="line 6: there is more after the end"):
        workload(read(path))


def test_bytes_that_are_no_text_are_a_mistake_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(HEADER.encode() + b'\n{"constant":"\xff","size":1}\n')
    with pytest.raises(TraceError, match="line 2"):
        workload(read(path))


def test_a_view_keeps_the_bytes_of_its_base() -> None:
    make = Call("make", (), {"a": 8}, cost=1.0)
    other = Call("other", (), {"b": 8}, cost=1.0)
    use = Call("use", ("v",), {"c": 0}, cost=1.0)
    released = (Release("b"), Release("c"))
    viewed = loaded(make, Alias("v", "a"), Release("a"), other, use, *released)
    assert viewed.needed == 16
    assert viewed.problem.ops[2].inputs == viewed.problem.ops[0].outputs


def test_what_is_held_beyond_its_last_use_takes_bytes_until_it_is_released() -> None:
    make = Call("make", (), {"a": 8}, cost=1.0)
    other = Call("other", (), {"b": 8}, cost=1.0)
    at_once = loaded(make, Release("a"), other, Release("b"))
    late = loaded(make, other, Release("a"), Release("b"))
    assert (at_once.needed, late.needed) == (8, 16)
    # It may go early, and is not computed again only to be released.
    run = run_online(late.problem, 8, COOP, lifetimes=late.lifetimes)
    assert run.schedule == (0, 1) and run.evictions == 1


# w is updated from a, and b, which came from a too, is read after that.
UPDATE = (
    Constant("w", 4),
    Call("first", ("w",), {"a": 4}, cost=1.0),
    Call("second", ("a",), {"b": 4}, cost=1.0),
    Call("large", (), {"c": 12}, cost=1.0),
    Call("done", ("c",), {"d": 0}, cost=1.0),
    Release("c"),
    Call("update", ("a",), mutates=("w",), cost=1.0),
    Release("a"),
    Call("read", ("b", "w"), {"e": 0}, cost=1.0),
    Release("b"),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_recomputed_call_reads_a_parameter_after_its_update(policy: Policy) -> None:
    work = loaded(*UPDATE)
    run = run_online(work.problem, 16, policy, lifetimes=work.lifetimes)
    # a and b go for the large one, and both come back before the update.
    assert run.schedule == (0, 1, 2, 3, 0, 1, 4, 5)
    validate(work.problem, run.schedule, 16, run.offsets)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_small_parameter_is_not_kept_beyond_its_update(policy: Policy) -> None:
    # It would be worth its four bytes, but they are overwritten.
    work = loaded(
        Constant("w", 4),
        Call("update", (), mutates=("w",), cost=1.0),
        Call("first", ("w",), {"a": 400}, cost=1.0),
        Call("large", (), {"c": 400}, cost=1.0),
        Call("done", ("c",), {"d": 0}, cost=1.0),
        Release("c"),
        Call("update", (), mutates=("w",), cost=1.0),
        Call("read", ("a",), {"e": 0}, cost=1.0),
        Release("a"),
    )
    run = run_online(work.problem, 408, policy, lifetimes=work.lifetimes)
    assert run.schedule == (0, 1, 2, 3, 1, 4, 5)
    validate(work.problem, run.schedule, 408, run.offsets)


def test_a_parameter_keeps_its_address_in_place_and_moves_as_a_copy() -> None:
    work = loaded(*UPDATE)
    old, new = work.problem.ops[4].in_place[0]
    for policy, is_same in ((COOP, True), (COPY_ON_WRITE, False), (DTR, False)):
        run = run_online(work.problem, 24, policy, lifetimes=work.lifetimes)
        places = [run.offsets[-1, old], run.offsets[run.schedule.index(4), new]]
        assert (places[0] == places[1]) == is_same
        validate(work.problem, run.schedule, 24, run.offsets)


def test_the_old_value_of_a_changed_tensor_is_computed_again_as_a_ghost() -> None:
    # b comes from a before a is changed in place; both are evicted.
    work = loaded(
        Constant("x", 4),
        Call("make", ("x",), {"a": 4}, cost=1.0),
        Call("reader", ("a",), {"b": 4}, cost=1.0),
        Call("change", (), mutates=("a",), cost=1.0),
        Call("change", (), mutates=("a",), cost=1.0),
        Call("large", (), {"c": 12}, cost=1.0),
        Call("done", ("c",), {"d": 0}, cost=1.0),
        Release("c"),
        Call("read", ("b",), {"e": 0}, cost=1.0),
        Release("b"),
        Call("read", ("a",), {"f": 0}, cost=1.0),
        Release("a"),
    )
    for policy in POLICIES:
        run = run_online(work.problem, 16, policy, lifetimes=work.lifetimes)
        # For b the first version of a, for a itself all three in a row.
        assert run.schedule == (0, 1, 2, 3, 4, 5, 0, 1, 6, 0, 2, 3, 7), policy
        validate(work.problem, run.schedule, 16, run.offsets)


def test_what_is_kept_is_not_evicted() -> None:
    def work(kept: tuple[str, ...]) -> Workload:
        return loaded(
            Call("make", (), {"a": 4}, cost=1.0, kept=kept),
            Call("large", (), {"b": 8}, cost=1.0),
            Call("read", ("b",), {"c": 0}, cost=1.0),
            Release("b"),
            Call("read", ("a",), {"d": 0}, cost=1.0),
            Release("a"),
        )

    free, kept = work(()), work(("a",))
    assert run_online(free.problem, 8, lifetimes=free.lifetimes).is_feasible
    assert not run_online(kept.problem, 8, lifetimes=kept.lifetimes).is_feasible
    assert kept.lifetimes == Lifetimes(kept=frozenset({0}))


def test_expensive_is_what_costs_more_per_byte_than_the_program() -> None:
    calls = (
        Call("dot_general", (), {"a": 100}, cost=1.0),
        Call("reduce", (), {"b": 1}, cost=0.5),
        Call("add", (), {"c": 100}, cost=0.1),
        Call("effect", (), cost=9.0),
    )
    by_density = workload(numbered(*calls))
    by_name = workload(numbered(*calls), "operators")
    assert [op.is_expensive for op in by_density.problem.ops] == [0, 1, 0, 0]
    assert [op.is_expensive for op in by_name.problem.ops] == [1, 0, 0, 0]


def layers(count: int, steps: int, weight_size: int = 1024) -> list[Event]:
    """Training steps of a chain of products and cheap ops, updating its weights."""
    events: list[Event] = [Constant("x", 4096)]
    events += [Constant(f"w{i}", weight_size) for i in range(count)]
    for step in range(steps):
        name = f"@{step}"
        state = "x"
        for i in range(count):
            size = 4096 * (1 + i % 3)
            events += [
                Call("matmul", (state, f"w{i}"), {f"p{i}{name}": size}, cost=1e-5),
                Call("relu", (f"p{i}{name}",), {f"a{i}{name}": size}, cost=1e-6),
            ]
            state = f"a{i}{name}"
        gradient = f"g{count}{name}"
        events.append(Call("loss", (state,), {gradient: 4096}, cost=1e-6))
        for i in reversed(range(count)):
            before = "x" if i == 0 else f"a{i - 1}{name}"
            size = 4096 * (1 + i % 3)
            inner, weight, outer = (f"{letter}{i}{name}" for letter in "dwg")
            events += [
                Call("relu'", (gradient, f"p{i}{name}"), {inner: size}, cost=1e-6),
                Release(gradient),
                Release(f"p{i}{name}"),
                Release(f"a{i}{name}"),
                Call("matmul", (inner, before), {weight: weight_size}, cost=1e-5),
                Call("matmul", (inner, f"w{i}"), {outer: size}, cost=1e-5),
                Call("sgd", (weight,), mutates=(f"w{i}",), cost=1e-6),
                Release(inner),
                Release(weight),
            ]
            gradient = outer
        events.append(Release(gradient))
    return events


# Small weights would be worth keeping for what is computed from them, but are updated.
@pytest.mark.parametrize("weight_size", [16, 1024])
@pytest.mark.parametrize("policy", [COOP, DTR, DTE], ids=lambda policy: policy.name)
def test_several_steps_run_within_less_than_they_need(
    policy: Policy, weight_size: int
) -> None:
    work = workload(numbered(*layers(20, 3, weight_size)), alignment=16)
    budget = int(0.6 * work.needed)
    run = run_online(work.problem, budget, policy, lifetimes=work.lifetimes)
    assert run.failure is None and run.evictions > 0
    assert run.peak <= budget
    validate(work.problem, run.schedule, budget, run.offsets)


def test_a_line_is_as_short_as_json_allows(tmp_path: Path) -> None:
    write(tmp_path / "trace.jsonl", [Call("f", (), {"a": 1}, cost=1.0)])
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert lines[1] == '{"call":"f","inputs":[],"outputs":{"a":1},"cost":1.0}'
    assert json.loads(lines[-1]) == {"end": 1}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
