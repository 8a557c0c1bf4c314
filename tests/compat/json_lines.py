"""The other interpreter's end of a conversation: each JSON line of standard input is answered with one JSON line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def answer_lines(actions: Mapping[str, Callable[..., Any]], errors: type[Exception]) -> None:
    """Do what each line says, until there are no more; what else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        for line in sys.stdin:
            command = json.loads(line)
            action = actions[command.pop("do")]
            try:
                answer: dict[str, Any] = {"result": action(**command)}
            except errors as error:
                answer = {"error": type(error).__name__}
            print(json.dumps(answer), file=out, flush=True)
