"""Structured log events: `noun.verb` and fields, as JSON lines unless standard error is a terminal.

Prompt text, generated text, secrets and keys are never logged.
"""

from __future__ import annotations

import logging
import sys

import structlog

Logger = structlog.stdlib.BoundLogger

NOISY_LIBRARIES = ("aiohttp.access", "asyncio", "ucx", "vllm")


def configure(service: str, name: str, level: str, *, for_people: bool = False) -> Logger:
    """Sets up the logging of the process, once, and returns its logger. `level` is a value of
    [fleet] log_level. With `for_people` only each event's sentence is printed, for commands that a
    person runs."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if for_people:
        renderer = _sentence
    elif sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in NOISY_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    logger: Logger = structlog.get_logger("baton")
    return logger.bind(service=service, name=name)


def _sentence(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    text = f"baton: {event.get('sentence') or event.get('event')}"
    trace = event.get("exception")
    return f"{text}\n{trace}" if trace else text
