"""A rank whose main thread runs an event loop with gRPC calls in it, beside a session."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import grpc
import torch
import torch.distributed as dist
import uvloop
from grpc_health.v1 import health_pb2

import gradwire

STEPS = 300


def train(done: threading.Event) -> None:
    store = dist.HashStore()
    with gradwire.connect(store=store, rank=0, world_size=1) as session:
        for step in range(STEPS):
            result = session.all_reduce(torch.full((1000,), float(step))).wait()
            assert result.unique().item() == step
    done.set()


async def ask(done: threading.Event) -> int:
    """Health checks, over and over; how many there were."""
    checks = 0
    async with grpc.aio.insecure_channel(os.environ["GRADWIRE_DAEMON"]) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        while not done.is_set():
            answer = await check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            checks += 1
    return checks


if __name__ == "__main__":
    finished = threading.Event()
    trainer = threading.Thread(target=train, args=(finished,))
    trainer.start()
    count = uvloop.run(ask(finished)) if sys.argv[1] == "uvloop" else asyncio.run(ask(finished))
    trainer.join()
    sys.stdout.write(str(count))
