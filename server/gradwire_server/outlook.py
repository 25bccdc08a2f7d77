"""What the metrics read of one engine. In any thread, while the engine is not closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_server.meters import JobFigures, RankFigures

if TYPE_CHECKING:
    from gradwire_server.chain import Chain
    from gradwire_server.engine import Engine
    from gradwire_server.meters import CodecMeter, Payload
    from gradwire_server.metrics import Metrics
    from gradwire_server.terms import Terms


class Outlook:
    """Shows an engine's figures from now on, until it is closed."""

    def __init__(
        self, engine: Engine, chain: Chain | None, terms: Terms, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._chain = chain
        self._terms = terms
        self._metrics = metrics
        metrics.before_scrape.add(engine.count)
        metrics.ranks.add(self, self._ranks)
        metrics.flight.add(self, self._flight)
        metrics.payloads.add(self, self._payloads)
        metrics.codecs.add(self, self._codecs)

    def close(self) -> None:
        """Count for the last time; what is in the arena is not looked at any more."""
        self._metrics.before_scrape.discard(self._engine.count)
        self._metrics.ranks.drop(self)
        self._metrics.flight.drop(self)
        self._metrics.payloads.drop(self)
        self._metrics.codecs.drop(self)

    def _ranks(self) -> list[tuple[str, RankFigures]]:
        straggling = self._engine.straggling
        last, paces = straggling.last_arrivals, self._engine.accounts.paces()
        return [
            (str(rank), RankFigures(score, last[rank], *paces[rank]))
            for rank, score in straggling.scores().items()
        ]

    def _flight(self) -> list[tuple[str, JobFigures]]:
        engine, size = self._engine, self._terms.chunk_bytes
        if self._chain is not None and engine.headway.chained:
            chunks = self._chain.in_flight
        else:
            chunks = engine.running
        missing = len(engine.group.absent)
        return [("", JobFigures(chunks * size, self._terms.slots * size, missing))]

    def _payloads(self) -> list[tuple[str, Payload]]:
        engine = self._engine
        nodes = engine.group.picture.nodes
        return [(nodes[peer].address, each) for peer, each in engine.meters.payloads.items()]

    def _codecs(self) -> list[tuple[str, CodecMeter]]:
        return self._engine.meters.codecs()
