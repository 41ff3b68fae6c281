"""Mutants that break nothing that dasktune promises, each with the reason."""

from __future__ import annotations

EQUIVALENT = {
    "dasktune/_engine/engine.py Engine.dismiss: saved -> True": (
        "Without saved states nothing happens between draining and the dismissal, which ends it."
    ),
    "dasktune/_engine/engine.py Engine.give_up: 0 -> (-1)": (
        "The engine does not read the step of a failure: it is for those who watch a dispatcher."
    ),
    "dasktune/_engine/timeouts.py _is_duration: return False -> return None": (
        "The only caller asks for truth, and None is as false as False."
    ),
    "dasktune/graph/frontier.py Frontier.move: 1 -> (2) (2)": (
        "A version is only compared with the one that was seen: any other number is newer."
    ),
    "dasktune/graph/audits.py AuditDraw.possible: not allowed -> False": (
        "No audit fits into 0 steps."
    ),
    "dasktune/storage/database/database.py Database.next_event: 0 -> (-1) (2)": (
        "The only column is also the last."
    ),
    "dasktune/storage/database/database.py Database.touch_checkpoints: table.c.used < when -> "
    "(table.c.used <= when)": "An equal time is written over itself.",
    "dasktune/storage/tensors.py checksums: sum(map(len, contents)) < _MANY_BYTES -> "
    "(sum(map(len, contents)) >= _MANY_BYTES)": (
        "One thread or several compute the same checksums."
    ),
    "dasktune/storage/files/failures.py _status_of: 100 -> (101)": (
        "Callers ask for 401, 403 and those that pass; status 100 is as little one of them as 0."
    ),
    "dasktune/storage/files/objects.py ObjectFiles._remove_seen.look_and_remove: 1 -> (2)": (
        "Only whether the list of tries is empty is read."
    ),
    "dasktune/trainer/fingerprint/data.py _file_digest: status.st_size >= _LARGE -> True": (
        "A small file is read by several threads, too; its digest is the same."
    ),
    "dasktune/trainer/fingerprint/source.py _read_outside: "
    "isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) -> True": (
        "Pieces are made of classes, which come before, and of functions."
    ),
    "dasktune/trainer/fingerprint/installed.py _is_editable: return False -> return None": (
        "The only caller asks for truth, and None is as false as False."
    ),
    "dasktune/storage/files/local.py LocalFiles.read: len(paths) <= 2 -> (len(paths) < 2)": (
        "Two files have the same content, whether one thread reads them or several."
    ),
    "dasktune/storage/files/objects.py ObjectFiles.remove_same: self._is_memory -> False": (
        "A mark is as safe in memory as elsewhere; it is only slower."
    ),
    "dasktune/storage/database/kept_writes.py KeptWrites._writes_after: 1 -> (0)": (
        "A database has all events of a write, or none: each of them tells."
    ),
    "dasktune/_engine/scaling.py DeviceChoices.wasteful: "
    "seconds >= PROVEN_TIME -> (seconds > PROVEN_TIME)": (
        "A measured time is never exactly the bound."
    ),
    "dasktune/_driver/other_leases.py _meet: 0 -> (1)": (
        "Only leases with the same first step are compared."
    ),
    "dasktune/trainer/generators.py restore_generator: 0 -> (1) (2)": (
        "A generator without a number of children has had none when its state was taken."
    ),
}
"""Reasons by the name of the mutant."""
