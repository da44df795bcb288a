"""Settings are frozen records, nested where an attack has its own; here they become flat names and
values."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Value = str | int | float | bool | None


def flatten(record: Any) -> dict[str, Value]:
    """A frozen record as names and values: `{"records": 100, "training.batch_size": 8}`.

    Tuples are joined by commas, functions go by their names, and a batch of all records is "full".

    Raises:
      ValueError: on a function whose name is not its own, such as a lambda's.
    """
    flat: dict[str, Value] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            flat |= {f"{field.name}.{name}": v for name, v in flatten(value).items()}
        elif field.name == "batch_size" and value is None:
            flat[field.name] = "full"
        elif isinstance(value, float) and not math.isfinite(value):
            flat[field.name] = str(value)  # JSON has no infinity
        elif isinstance(value, tuple):
            flat[field.name] = ",".join(map(str, value))
        else:
            flat[field.name] = _name_of(field.name, value) if callable(value) else value
    return flat


def _name_of(field: str, function: Callable[..., Any]) -> str:
    """A name that tells a function from others: results are found by it."""
    name = str(getattr(function, "__name__", ""))
    local = "<locals>" in getattr(function, "__qualname__", "") and "(" not in name
    if not name or name == "<lambda>" or local:
        raise ValueError(
            f"{field}={function!r} has no name that tells it from others; give a function of a "
            "module, or one whose __name__ holds its numbers, as 'clipped_sgd(1.0)'"
        )
    return name


def defaults(kind: type) -> dict[str, Value]:
    """Flat names and values of those fields of a record's type that have a default."""
    known = [f for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING]
    holder = dataclasses.make_dataclass("Defaults", [(f.name, f.type, f.default) for f in known])
    return flatten(holder())


def replace(record: Any, changes: Mapping[str, Any]) -> Any:
    """A record with other values under flat names, `{"training.batch_size": 8}`.

    Raises:
      ValueError: if the record has no such name.
    """
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if first not in {field.name for field in dataclasses.fields(record)}:
            known = ", ".join(field.name for field in dataclasses.fields(record))
            raise ValueError(
                f"setting {name!r} is unknown to {type(record).__name__}; it has {known}"
            )
        inner = replace(getattr(record, first), {rest: value}) if rest else value
        record = dataclasses.replace(record, **{first: inner})
    return record


def full_name(name: str, known: Iterable[str]) -> str:
    """The flat name that a whole name, or its last part where that is unique, stands for.

    Raises:
      ValueError: if there is no such name, or several.
    """
    known = list(dict.fromkeys(known))
    matches = [name] if name in known else [k for k in known if k.rpartition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(f"{name!r} may be {' or '.join(sorted(matches))}; name one in full")
    raise ValueError(
        f"{name!r} is no column or setting here; choose from {', '.join(sorted(known))}"
    )


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last part of every flat name where that is unique, the whole name elsewhere."""
    names = list(dict.fromkeys(names))
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: part if last.count(part) == 1 else name
        for name, part in zip(names, last, strict=True)
    }


def constant(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Names and values of what all cells that have it agree on."""
    values: dict[str, list[Any]] = {}
    for cell in cells:
        for name, value in cell.items():
            values.setdefault(name, []).append(value)
    return {name: each[0] for name, each in values.items() if each.count(each[0]) == len(each)}


def varying(cells: list[dict[str, Any]], last: Iterable[str] = ()) -> list[str]:
    """Names that tell cells apart, among those cells that have them; one that follows from the
    others before it is left out.

    Args:
      cells: names and values.
      last: names that begin with one of these are looked at last.
    """
    prefixes = tuple(last)
    names = dict.fromkeys(name for cell in cells for name in cell)
    told: list[dict[str, Any]] = [  # 1, 1.0 and True are three values
        {name: (type(value), value) for name, value in cell.items()} for cell in cells
    ]
    chosen: list[str] = []
    for name in sorted(names, key=lambda k: k.startswith(prefixes)):
        having = [cell for cell in told if name in cell]
        if len({cell[name] for cell in having}) == 1:
            continue
        values: dict[tuple[Any, ...], set[Any]] = {}
        for cell in having:
            values.setdefault(tuple(cell.get(k) for k in chosen), set()).add(cell[name])
        if any(len(each) > 1 for each in values.values()):
            chosen.append(name)
    return chosen
