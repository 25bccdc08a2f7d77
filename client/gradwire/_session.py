"""One rank's seat in a job: what a training script holds."""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire._checkpoint import pack, unpack
from gradwire._errors import LostError
from gradwire._order import gathering, reducing, scattering
from gradwire._profiling import span
from gradwire._tensor import bytes_of, check_weight, is_inexact

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import torch
    from torch.distributed import GradBucket
    from torch.utils.hooks import RemovableHandle

    from gradwire._buckets import Buckets
    from gradwire._checkpoint import State
    from gradwire._collective import SessionStats
    from gradwire._order import Order
    from gradwire._place import Place
    from gradwire._result import Result
    from gradwire._ways import Ways
    from gradwire._wire import AnyWire


log = logging.getLogger(__name__)


class Session:
    """A rank's seat in a job; gradwire.connect makes it. Methods may be called from any thread.

    Every rank of the job must submit the same collectives in the same order. A context manager;
    also closed when the process ends.
    """

    def __init__(self, place: Place, ways: Ways, buckets: Buckets, weight: float = 1.0) -> None:
        self._place = place
        self._ways = ways
        self._buckets = buckets
        self._guard = guard = buckets.guard
        self._weight = weight
        self._before_steps: RemovableHandle | None = None
        if guard.skips:
            self._before_steps = register_optimizer_step_pre_hook(guard.steps.before_step)
        atexit.register(self.close)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self._place.world_size

    @property
    def node(self) -> int:
        """Index of this rank's node."""
        return self._place.node

    @property
    def nodes(self) -> int:
        """Nodes in the job."""
        return self._place.nodes

    @property
    def generation(self) -> str:
        """Random name of this life of the job."""
        return self._place.generation

    @property
    def daemon(self) -> str:
        """Address of this node's daemon."""
        return self._place.daemon

    @property
    def path(self) -> str:
        """How tensors reach the daemon: "shared_memory" or "stream"."""
        return self._ways.path

    @property
    def stats(self) -> SessionStats:
        """Counts since the session began."""
        return self._ways.stats

    @property
    def weight(self) -> float:
        """This rank's share in means, of the hook as well, from the next one on: 1 at first.

        Set it to the number of samples in the rank's batch, and gradients are those of the mean
        over all samples. With 0 the rank brings nothing: a rank that has run out of batches
        says so within DDP's `join()`. Raises ValueError unless it is 0, or 2^-32 to 2^32.
        """
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        check_weight(weight)
        self._weight = weight

    @property
    def step(self) -> int:
        """Number of the training step under way, from 1, as the hook sees them: one begins with
        the first bucket of a backward pass, and so ends after the optimizer; 0 before that.
        """
        return self._guard.steps.number

    @property
    def skips_step(self) -> bool:
        """Where `nonfinite` is "skip": the gradients of the step under way are not finite, on
        all ranks alike, and torch's optimizers don't use them. Others ask here, after
        backward().
        """
        return self._guard.steps.skipping

    @property
    def skipped_steps(self) -> int:
        """How many steps were to be skipped; the same on all ranks."""
        return self._guard.steps.skipped

    def watch(self, model: torch.nn.Module) -> None:
        """Learn what the model's parameters are called, with or without DDP around it.

        Errors and warnings then name them. Raises TypeError for what is no module.
        """
        self._guard.names.watch(model)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """What a parameter is called in a model that is watched; None in no such model."""
        return self._guard.names.of(parameter)

    def all_reduce(  # noqa: PLR0913 - a tensor and an op, the rest keywords
        self,
        tensor: torch.Tensor,
        op: str = "mean",
        weight: float | None = None,
        *,
        urgent: bool = False,
        wire: AnyWire | None = None,
        name: str | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce a tensor over all ranks, in place; returns at once.

        The future holds the tensor itself, with the same bits on every rank. Until then the
        tensor must not be touched. Any shape, contiguous or not; fp16, bf16, fp32, fp64,
        complex, int8 to int64, uint8, bool. `op` is mean, sum, min, max or product, and for
        integers and bools band, bor or bxor; `weight` is this rank's share in a mean, if not
        the session's. 16-bit floats are summed in fp32; a mean of integers is truncated, and
        not weighted; the sum of bools is their logical or, the product their logical and. What
        is chained to the future may submit collectives, too, if it does so in the same order on
        all ranks.

        What is urgent overtakes what is not, in the ranks and between the nodes, which keep a
        little for the rest; each kind keeps its own order. For loops that need some results
        before others: DDP waits for all of them. The first urgent tensor takes another seat,
        for which the call waits until all ranks have come to theirs (ConnectError after
        connect_timeout).

        `wire` is how it crosses from node to node, the session's unless given; see
        gradwire.Wire. Sums and means of 16- and 32-bit floats can cross a lossy one; all else
        goes exact. What a wire loses is added the next time to what has the same `name`; what
        has none just loses it. A name must stand for one tensor, and be the same on all ranks.

        Raises TypeError or ValueError for what can't be reduced, and LostError where the
        session is over. The future raises MismatchError, RoundTimeoutError or, where all ranks'
        weights are 0, ZeroWeightError, after which the session goes on, or LostError, after
        which it does not. What the tensor holds after an error is not defined: a large one may
        have come back in part.
        """
        shapes = [tuple(getattr(tensor, "shape", ()))]
        order = reducing(tensor, shapes, op, self._weigh(tensor, op, weight))
        coded = self._buckets.wires.coded(tensor, wire, op, name)
        return self._submit(order.over(coded), urgent=urgent)

    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        takes: tuple[int, int],
        op: str = "sum",
        weight: float | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce a flat, contiguous tensor; write back its elements [start, stop) only.

        Every rank brings all of its tensor, and takes what it likes: nothing, (0, 0), or what
        others take, too. What it does not take it leaves as it was. With `out`, flat and
        contiguous, what it takes is written there; the tensor stays as it was, whatever
        happens, and is what the future holds. Until that is done, `out` must not be touched,
        nor the tensor changed. Otherwise like all_reduce, with which it gives the same bits.

        Raises what all_reduce raises, and ValueError for a tensor that is not flat and
        contiguous, or has no such elements, and for an `out` of another size or dtype, or that
        shares memory with other parts of the tensor.
        """
        order = scattering(tensor, takes, op, self._weigh(tensor, op, weight), out)
        return self._submit(order.over(self._buckets.wires.coded(tensor, None, op, None)))

    def all_gather(
        self, tensor: torch.Tensor, brings: tuple[int, int]
    ) -> torch.futures.Future[torch.Tensor]:
        """Fill a flat, contiguous tensor with what the ranks bring of it, in place.

        Each rank brings elements [start, stop) of its tensor, which may be none, (0, 0), or
        all, as the root of a broadcast does; the future holds the tensor with what the others
        have brought. Any dtype; every bit arrives as it was. No element may be brought by two
        ranks: that is not found out, and what comes of it is not defined. What nobody brings
        becomes zero, except that a rank's own elements are never written to.

        Raises TypeError or ValueError for another tensor or range, and LostError where the
        session is over. The future raises what that of all_reduce raises.
        """
        return self._submit(gathering(tensor, brings))

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean, by the session's weights, of one of DDP's buckets, in place; for hooks.

        Like all_reduce, over the wires that the session's rules say for the bucket's
        parameters.
        """
        future = self._buckets.reduce(bucket, self._weight, self._submit)
        # It is C++ code that waits for it, and does no work meanwhile.
        self._ways.call_movers()
        return future

    def send(
        self, tensor: torch.Tensor, to: int, tag: int = 0, timeout: float | None = None
    ) -> torch.futures.Future[None]:
        """Send a tensor's bytes to another rank; returns at once.

        The future is done once the receiver has all of it in a tensor of its own. Until then
        the tensor must not be changed. Any dtype, contiguous. `timeout`, in seconds, is the
        session's unless given. Up to 1024 messages to a rank may wait for it to receive them;
        further ones are not seen there before.

        Raises TypeError or ValueError for what can't be sent. The future raises MismatchError
        where the receiver's tensor has another size, RoundTimeoutError, or LostError where the
        receiver has left, which others don't notice, or the session is over.
        """
        data = self._check(tensor, to, tag)
        return self._ways.mail.send(data, to, tag, self._patience(timeout))

    def receive(
        self,
        tensor: torch.Tensor,
        source: int | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> torch.futures.Future[int]:
        """Fill a tensor with what another rank sends; returns at once.

        The future holds the rank it came from. Until then the tensor must not be touched. Any
        dtype, contiguous; only the number of bytes is compared. Messages of one rank and tag
        are received in the order in which they were sent, by the calls in their order; with
        source None, the one that came first, of any rank. `timeout` is as in `send`.

        Raises TypeError or ValueError for what can't be filled. The future raises as that of
        `send` does; what the tensor holds then is not defined.
        """
        data = self._check(tensor, source, tag)
        return self._ways.mail.receive(data, source, tag, self._patience(timeout))

    def state_dict(self) -> State:
        """What lossy wires have lost and not made good yet, for a checkpoint.

        For torch.save; torch.load(weights_only=True) takes it. Every rank calls it between two
        steps, saves its own, and loads that again: what a node has lost is in the state of its
        first rank. Raises ValueError while a collective has no result, LostError where the
        session is over.
        """
        self._check_idle()
        vaults, revoked = self._ways.vaults(), self._guard.revoked()
        ways = [vault.read(revoked) if self._is_first else [] for vault in vaults]
        return pack(self._layout(), ways, self._buckets.wires)

    def load_state_dict(self, state: State) -> None:
        """Go on where the session that returned this state was; every rank, before its first
        step.

        Then the steps give the same bits as they would have there. What does not fit begins
        anew, and is logged: another layout of ranks, nodes, workers and chunks, or parameters
        without names. Raises ValueError for what is no state, LostError where the session is
        over, ConnectError where the state has urgent tensors, and there are no seats for them.
        """
        self._check_idle()
        ways = unpack(state, self._layout(), self._buckets.wires)
        vaults = self._ways.vaults(urgent=len(ways) > self._place.workers)
        for vault, residuals in zip(vaults, ways, strict=True):
            if self._is_first and (dropped := vault.write(residuals)):
                log.warning("what lossy wires had lost of %d tensors begins anew", dropped)

    @property
    def _is_first(self) -> bool:
        """This rank speaks for its node."""
        return self.rank == self._place.local_ranks[0]

    def _check_idle(self) -> None:
        self._ways.check_process()
        if (over := self._ways.over) is not None:
            raise type(over)(str(over))
        if not self._ways.idle:
            raise ValueError("expected no collective under way; wait for all results first")

    def _layout(self) -> dict[str, int | list[int]]:
        place = self._place
        return {
            "world_size": place.world_size,
            "node": place.node,
            "ranks": list(place.local_ranks),
            "workers": place.workers,
        }

    def hurry(self) -> None:
        """Have a thread of this session do the work at once: who waits won't do it."""
        self._ways.call_movers()

    def give_up(self, reason: str) -> None:
        """End the session without a goodbye: the others lose this rank at once, whatever they
        are at. What is not complete fails with this reason, and is not written to any more.
        """
        self._ways.mail.break_off(LostError(reason))

    def close(self) -> None:
        """Leave the job; what is not complete fails on this rank. May be repeated."""
        atexit.unregister(self.close)
        handle, self._before_steps = self._before_steps, None
        if handle is not None:
            handle.remove()
        self._ways.end(LostError("this session was closed"))

    def _weigh(self, tensor: torch.Tensor, op: str, weight: float | None) -> float:
        if weight is not None:
            return weight
        return self._weight if op == "mean" and is_inexact(tensor) else 1.0

    def _submit(self, order: Order, *, urgent: bool = False) -> Result[torch.Tensor]:
        self._ways.check_process()
        with span("submit"):
            return self._ways.submit(self._buckets.guarded(order), urgent=urgent)

    def _check(self, tensor: torch.Tensor, peer: int | None, tag: int) -> memoryview:
        """The bytes of a message."""
        self._ways.check_process()
        if peer is not None and (peer not in range(self.world_size) or peer == self.rank):
            raise ValueError(
                f"expected another rank of 0 to {self.world_size - 1}, got {peer} on rank"
                f" {self.rank}"
            )
        if not -(2**63) <= tag < 2**63:
            raise ValueError(f"expected a tag of 64 bits, got {tag}")
        return bytes_of(tensor)

    def _patience(self, timeout: float | None) -> float:
        if timeout is None:
            return self._place.timeout
        if not timeout > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout}")
        return timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._ways.over is None else "over"
        return f"<gradwire.Session rank {self.rank} of {self.world_size}, {state}>"
