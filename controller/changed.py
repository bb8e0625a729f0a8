"""A frozen record with some fields changed, or itself where nothing would be.

Most ticks change nothing, and `dataclasses.replace` costs microseconds for a record of a dozen
fields: in the loop that is most of a decision.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def changed(record: Record, **fields: Any) -> Record:
    """`record` with these fields; the same object where all of them are as they were."""
    for name, value in fields.items():
        held = getattr(record, name)
        if held is not value and held != value:
            return replace(record, **fields)
    return record
