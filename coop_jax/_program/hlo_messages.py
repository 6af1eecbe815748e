"""Classes for the protocol buffers of XLA's modules and buffer assignments.

jaxlib ships none. The few fields needed here are declared below, by the numbers of
openxla/xla's `xla/service/hlo.proto` and `xla/xla_data.proto`; unknown fields are
skipped by the format itself.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _FIELD.TYPE_INT64,
    "int32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
}
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "OpMetadata": {"op_name": (2, "string")},
    "Instruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "metadata": (7, "OpMetadata"),
        "parameter_number": (9, "int64"),
        "tuple_index": (13, "int64"),
        "custom_call_target": (28, "string"),
        "id": (35, "int64"),
        "operand_ids": (36, "int64*"),
        "called_computation_ids": (38, "int64*"),
    },
    "Computation": {
        "instructions": (2, "Instruction*"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "HloModule": {
        "computations": (3, "Computation*"),
        "entry_computation_id": (6, "int64"),
    },
    "DefinedAt": {"shape_index": (3, "int64*"), "instruction_id": (4, "int64")},
    "LogicalBuffer": {
        "id": (1, "int64"),
        "size": (2, "int64"),
        "defined_at": (3, "DefinedAt"),
    },
    "Assigned": {
        "logical_buffer_id": (1, "int64"),
        "offset": (2, "int64"),
        "size": (3, "int64"),
    },
    "Allocation": {
        "index": (1, "int64"),
        "size": (2, "int64"),
        "is_thread_local": (3, "bool"),
        "is_parameter": (5, "bool"),
        "maybe_live_out": (7, "bool"),
        "assigned": (9, "Assigned*"),
        "is_constant": (12, "bool"),
    },
    "HeapEvent": {
        "kind": (1, "int32"),
        "buffer_id": (2, "int64"),
        "instruction_name": (4, "string"),
        "share_with_canonical_id": (5, "int64"),
    },
    "HeapTrace": {"events": (1, "HeapEvent*")},
    "BufferAssignment": {
        "logical_buffers": (1, "LogicalBuffer*"),
        "allocations": (3, "Allocation*"),
        "heap_simulator_traces": (4, "HeapTrace*"),
    },
    "Hlo": {"module": (1, "HloModule"), "buffer_assignment": (3, "BufferAssignment")},
}


def parse(message: str, serialized: bytes) -> Any:
    """A message of one of the kinds in the schema."""
    parsed = message_class(message)()
    parsed.ParseFromString(serialized)
    return parsed


@functools.cache
def message_class(name: str) -> Any:
    """The class of one of the kinds in the schema."""
    return message_factory.GetMessageClass(
        _pool().FindMessageTypeByName(f"coop_jax.{name}")
    )


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="coop_jax/hlo.proto", package="coop_jax", syntax="proto3"
    )
    for message, fields in _SCHEMA.items():
        descriptor = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = descriptor.field.add(name=name, number=number)
            is_repeated = kind.endswith("*")
            field.label = (
                _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
            )
            kind = kind.rstrip("*")
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".coop_jax.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
