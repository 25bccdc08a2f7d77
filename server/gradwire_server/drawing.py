"""Draws one generation's rounds for who listens: what the daemon did, and its ranks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gradwire_server.tracing import Deeds, Track

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gradwire_server.chain import Chain
    from gradwire_server.execution import Execution
    from gradwire_server.tracing import Recorder

LOOK_SECONDS = 0.05
"""Between two looks at what ranks have noted: they keep but the latest."""

_ROUNDS = Track("rounds")


class Drawing:
    """On the event loop."""

    def __init__(self, recorder: Recorder, generation: str, chain: Chain | None) -> None:
        self._recorder = recorder
        self._generation = generation
        self._chain = chain
        self._following = False
        self._over = False

    def begin(self, execution: Execution) -> None:
        """A round begins; it is drawn if somebody listens now."""
        if self._recorder.on:
            execution.watch.spans = []

    def end(self, execution: Execution) -> None:
        """Its task has ended, with or without a result."""
        if execution.watch.spans:
            self._recorder.record(
                _ROUNDS,
                execution.watch.spans,
                generation=self._generation,
                round=execution.round.key.sequence,
                chunk=execution.round.key.chunk,
                bytes=execution.extent.size,
            )

    def close(self) -> None:
        """Nothing more happens: `follow` ends soon."""
        self._over = True

    @property
    def wanted(self) -> bool:
        """Somebody listens, and nobody looks yet at what the ranks do."""
        return self._recorder.on and self._chain is not None and not self._following

    def follow(self) -> Coroutine[None, None, None]:
        """Draw what the ranks do, as long as somebody listens."""
        assert self._chain is not None, "see wanted"  # noqa: S101
        self._following = True
        return self._follow(self._chain)

    async def _follow(self, chain: Chain) -> None:
        try:
            # What ranks noted for an earlier trace.
            list(chain.deeds())
            chain.trace(on=True)
            while self._recorder.on and not self._over:
                await asyncio.sleep(LOOK_SECONDS)
                self._look(chain)
        finally:
            chain.trace(on=False)
            self._following = False

    def _look(self, chain: Chain) -> None:
        for rank, words in chain.deeds():
            self._recorder.pass_on(Deeds(self._generation, rank, words))
