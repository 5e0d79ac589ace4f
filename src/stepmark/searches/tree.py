"""The tree that a search grows: its steps, what has been spent, what the policy and the PRM are asked.

All searches grow their trees here, so that budgets, costs, checks and useless steps are treated alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from stepmark.backends import (
    Completing,
    Completion,
    Completions,
    ScoreRequest,
    StepScore,
    StepScoring,
    Verifying,
    all_of,
    replied,
)
from stepmark.data.steps.splitting import own_text
from stepmark.errors import BackendError, InputError, UsageError
from stepmark.metrics.aggregate import aggregate, check_score
from stepmark.records import Problem
from stepmark.report.search import NodeState, TraceNode
from stepmark.searches.base import (
    Budget,
    Candidate,
    SearchCost,
    Searching,
    SearchResult,
    SearchTrace,
    Steps,
    Stopped,
)
from stepmark.searches.meaning import meaning
from stepmark.verifiers.checks import check, check_names
from stepmark.verifiers.finder import find_answer
from stepmark.words import amount

_FOLLOWS = ("a step before it", "every step after it", "says the same")
"""Beginnings of reasons that follow from another step's."""


@dataclass(kw_only=True, eq=False)
class Node:
    """One step in the tree, or the problem itself (`parent` None)."""

    number: int
    parent: Node | None
    step: str
    """Its text as it was written, without the line breaks around it; "" for the problem, and for an end without a step."""
    text: str
    """What the policy has written up to here, as it stood."""
    steps: tuple[str, ...]
    """The steps up to here."""
    round: int
    scores: tuple[float | None, ...] = ()
    """The PRM's, of the steps up to here; shorter than `steps` before it is scored."""
    aggregate: float | None = None
    rank: float | None = None
    """What it is compared by: its aggregate, or that of what was looked ahead from it."""
    state: NodeState = "kept"
    why: str = ""
    ended: bool = False
    """The policy ended the solution here."""
    refuted: bool = False
    """A check proves that the step is wrong."""
    policy_tokens: int | None = 0
    prm_tokens: int | None = 0
    read: int = 0
    """Tokens that the PRM reads up to here, as far as they are known."""
    visits: int | None = None
    value: float | None = None
    meanings: dict[str, int] = field(default_factory=dict)
    """The number of the child with each meaning."""

    @property
    def score(self) -> float | None:
        """Of this step; None for a node without a step, and before it is scored."""
        return self.scores[-1] if self.step and self.scores and len(self.scores) == len(self.steps) else None

    @property
    def alive(self) -> bool:
        """Not given up."""
        return self.state != "pruned"

    @property
    def running(self) -> bool:
        """Neither given up nor at its end."""
        return self.alive and not self.ended

    @property
    def path(self) -> list[Node]:
        """From the first step to this one."""
        results: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            results.append(node)
            node = node.parent
        return results[::-1]

    def below(self, above: Node) -> list[Node]:
        """The path from the step after `above` to this one."""
        return self.path[len(above.path) :]

    def prune(self, why: str) -> None:
        """Give it up; the first reason stays."""
        if self.alive:
            self.state, self.why = "pruned", why

    def record(self) -> TraceNode:
        """As it stands in a trace."""
        return TraceNode(
            number=self.number,
            parent=None if self.parent is None or self.parent.parent is None else self.parent.number,
            step=self.step,
            score=self.score,
            aggregate=self.aggregate,
            state=self.state,
            why=self.why,
            refuted=self.refuted,
            round=self.round,
            policy_tokens=self.policy_tokens,
            prm_tokens=self.prm_tokens,
            visits=self.visits,
            value=self.value,
        )


@final
class Nodes:
    """All steps of one tree, in the order in which they were written; `how` says where steps end and how long they may be."""

    def __init__(self, how: Steps) -> None:
        self._how = how
        self.root = Node(number=-1, parent=None, step="", text="", steps=(), round=-1)
        self.all: list[Node] = []

    def add(self, parent: Node, written: Completion, round_: int, *, cut: bool, dedupe: bool) -> Node:
        """Add a step that was written after a node.

        `cut`: the budget lowered `max_tokens`. `dedupe`: give the step up if it says what an earlier child says.
        """
        node = self._new(parent, own_text(written.text), written.text, round_)
        node.policy_tokens = written.tokens
        self._settle(node, parent, written, cut=cut)
        if dedupe and node.alive:
            event = f"{node.ended} {meaning(node.step)}"
            first = parent.meanings.setdefault(event, node.number)
            if first != node.number:
                node.prune(f"says the same as step {first}")
        return node

    def _settle(self, node: Node, parent: Node, written: Completion, *, cut: bool) -> None:
        """Decide whether the solution ends with a new step, and whether the step is of use."""
        if written.finish == "length":
            node.prune(
                "cut off by the budget"
                if cut
                else f"not at its end after {amount(self._how.max_tokens, 'token')}"
            )
        elif not node.step and (parent.parent is None or written.finish == "stop"):
            node.prune("nothing was written")
        elif node.step and parent.step and meaning(node.step) == meaning(parent.step):
            node.prune("repeats the step before it")
        elif written.finish == "end" or not node.step:
            node.ended = True
        elif written.finish == "end or stop" and find_answer(node.step, "marked") is not None:
            node.ended = True  # the server does not say which, and an answer is there
        elif len(node.steps) >= self._how.max_steps:
            node.prune(f"not finished after {amount(self._how.max_steps, 'step')}")
        if node.running:
            node.text += self._how.stop

    def add_whole(self, parent: Node, written: Completion, round_: int, *, cut: bool) -> Node:
        """A solution that was written in one go, a node a step; its last node, which bears its tokens."""
        node, rest, mark = parent, written.text, "start"
        while mark:
            piece, mark, rest = rest.partition(self._how.stop)
            if piece.strip():
                node = self._new(node, own_text(piece), piece + mark, round_)
        if node is parent:
            node = self._new(parent, "", "", round_)
        node.text = parent.text + written.text
        node.policy_tokens = written.tokens
        if written.finish == "length":
            most = self._how.max_solution_tokens
            why = "cut off by the budget" if cut else f"not at its end after {amount(most, 'token')}"
        elif not node.step and parent.parent is None:
            why = "nothing was written"
        else:
            node.ended = True
            return node
        for step in node.below(parent):
            step.prune(why)
        return node

    def _new(self, parent: Node, step: str, text: str, round_: int) -> Node:
        node = Node(
            number=len(self.all),
            parent=parent,
            step=step,
            text=parent.text + text,
            steps=(*parent.steps, step) if step else parent.steps,
            round=round_,
            scores=parent.scores,
        )
        self.all.append(node)
        return node


def ranked(nodes: Iterable[Node]) -> list[Node]:
    """Best first, by what they are compared by; of equals the earlier one."""
    return sorted(nodes, key=lambda node: (-value_of(node.rank), node.number))


def value_of(value: float | None) -> float:
    """A number to sort by: nothing is below everything."""
    return float("-inf") if value is None else value


def added(a: int | None, b: int | None) -> int | None:
    """Both counts together; None where one is not known."""
    return None if a is None or b is None else a + b


@final
class Spending:
    """The account of one search; `scored` says whether a PRM reads what is written."""

    def __init__(self, budget: Budget, *, scored: bool) -> None:
        self._budget, self._scored = budget, scored
        self.cost = SearchCost()
        """The cost so far."""

    def allow(self, samples: int, limit: int, longest: int) -> tuple[int, int]:
        """How many of some samples may be asked for now (0 where nothing more may be written), and `max_tokens` of each.

        Where the rest of the budget would not do for all of them at their longest (`limit`), so many are asked for as it does at the
        longest seen so far
        (one, where none was seen: `longest` 0), and the others afterwards: what is cut off is of no use.
        """
        remaining = self._left()
        if remaining is None or remaining >= samples * limit:
            return samples, limit
        if remaining < 1:
            return 0, limit
        count = min(samples, max(1, remaining // longest)) if longest else 1
        return count, min(limit, remaining // count)

    def wrote(self, reply: Sequence[Completion]) -> None:
        """Enter the texts of one request."""
        cost = self.cost
        prompt = reply[0].prompt_tokens if reply else None
        decoded = cost.decoded
        for text in reply:
            if text.tokens is None and self._budget.tokens is not None:
                raise UsageError("this policy does not say how many tokens it writes; leave the budget out")
            decoded = added(decoded, text.tokens)
        self.cost = replace(
            cost,
            prompt=added(cost.prompt, prompt),
            new=cost.new if cost.writes else prompt,
            told_cached=added(cost.told_cached, reply[0].cached_tokens if reply else None),
            decoded=decoded,
            writes=cost.writes + 1,
            samples=cost.samples + len(reply),
        )

    def read(self, tokens: int | None, before: int) -> None:
        """Enter tokens that the PRM read, `before` tokens before them."""
        if tokens is None and self._budget.tokens is not None:
            raise UsageError("this PRM does not say how many tokens it reads; leave the budget out")
        cost = self.cost
        self.cost = replace(
            cost,
            prm=added(cost.prm, tokens),
            prm_prompt=added(cost.prm_prompt, added(tokens, before)),
            scores=cost.scores + 1,
        )

    def _left(self) -> int | None:
        """Tokens that may still be written, with the PRM's reading of them kept back; None for any number."""
        if self._budget.tokens is None:
            return None
        assert self.cost.tokens is not None  # a model that does not count was refused
        remaining = self._budget.tokens - self.cost.tokens
        return remaining // 2 if self._scored else remaining


@final
class Tree:
    """One problem's tree, grown by a search with these settings and models; `scored` says whether the PRM is asked at all."""

    def __init__(
        self,
        problem: Problem,
        settings: Searching,
        method: str,
        policy: Completing,
        prm: StepScoring,
        verifier: Verifying,
        *,
        scored: bool = True,
    ) -> None:
        self.problem = problem
        self.policy, self.prm, self.verifier = policy, prm, verifier
        self.how, self.grading = settings.how, settings.grading
        self.method = method
        self.scored = scored
        self.prompt = self.how.prompt_of(problem)
        self.nodes = Nodes(self.how)
        self.root = self.nodes.root
        self.spending = Spending(settings.budget, scored=scored)
        self.stopped: Stopped = "done"
        self._checks = check_names(self.grading.checks)
        self.note = ""
        self._asked: dict[str, int] = {}
        self._greedy: set[Completions] = set()
        self._charged: set[tuple[str, ...]] = set()
        self._held: set[tuple[str, ...]] = set()
        self._release: list[tuple[str, ...]] = []
        self._longest: dict[str, int] = {}

    async def grow(
        self,
        asks: Sequence[tuple[Node, int]],
        round_: int,
        *,
        dedupe: bool = True,
        ahead: bool = False,
    ) -> list[list[Node]]:
        """Write steps after some nodes and score them.

        Where the budget does not do for all of them and no solution is finished, what is left takes the best of the nodes to its end,
        greedily: half a round would be of no use. Where the budget does not allow them all, `stopped` is set.

        Args:
            asks: nodes, best first (where the budget ends, the last ones go without), and how many steps after each.
            round_: for the trace.
            dedupe: give up a step that says what an earlier one after the same node says.
            ahead: look ahead: greedily, and whatever is a duplicate.

        Returns:
            For each ask, the nodes that are alive, in the order in which they were written.
        """
        heat = 0.0 if ahead else self.how.temperature
        limit = self.how.max_tokens
        counts = [min(count, 1) if heat == 0 else count for _, count in asks]
        children: list[list[Node]] = [[] for _ in asks]
        while any(counts) and not self.spent:
            count, most = self.spending.allow(sum(counts), limit, self._longest.get("step", 0))
            if not count:
                self.stop("budget")
                break
            if count < sum(counts) and self._longest.get("step") and not ahead and not self.finished:
                best = min((node for node, _ in asks if node.alive), key=lambda node: -value_of(node.rank))
                if best is not self.root:
                    self.stop("budget")
                    await self.write_whole(best, 1, round_, temperature=0.0, last=True)
                    break
            places, writes = [], []
            for place, (node, _) in enumerate(asks):
                given = min(counts[place], count)
                if given and node.alive:
                    places.append(place)
                    writes.append(self._write(node, given, heat, most, (self.how.stop,)))
                counts[place] -= given
                count -= given
            fresh = []
            for place, texts in zip(
                places,
                await self._written(writes, [asks[place][0] for place in places], "step"),
                strict=True,
            ):
                for written in texts:
                    self._budget_cut(written, most < limit)
                    child = self.nodes.add(
                        asks[place][0],
                        written,
                        round_,
                        cut=most < limit,
                        dedupe=dedupe and not ahead,
                    )
                    children[place].append(child)
                    fresh.append(child)
            await self.score(fresh)
        return [[node for node in nodes if node.alive] for nodes in children]

    async def write_whole(
        self, node: Node, count: int, round_: int, *, temperature: float | None = None, last: bool = False
    ) -> list[Node]:
        """Write solutions to their end in one go, from a node, and score their steps.

        `temperature` None is that of the settings; with `last` they are written where the search has stopped too, with what is left of the
        budget.

        Returns:
            The last node of each that the policy ended, in order. The others are cut off and given up.
        """
        heat = self.how.temperature if temperature is None else temperature
        limit = self.how.max_solution_tokens
        asked = min(count, 1) if heat == 0 else count
        ends: list[Node] = []
        while asked and node.alive and (last or not self.spent):
            given, most = self.spending.allow(asked, limit, self._longest.get("solution", 0))
            if not given:
                self.stop("budget")
                break
            asked -= given
            write = self._write(node, given, heat, most, ())
            [texts] = await self._written([write], [node], "solution")
            fresh = []
            for written in texts:
                self._budget_cut(written, most < limit)
                fresh.append(self.nodes.add_whole(node, written, round_, cut=most < limit))
            ends += fresh
            await self.score([step for end in fresh for step in end.below(node)])
        return [end for end in ends if end.alive]

    async def score(self, nodes: Sequence[Node]) -> None:
        """Check the last step of nodes that are alive and have no score yet, and score those that stand, all of them together."""
        for node in nodes:
            self._check(node)
        if not self.scored:
            return
        fresh = [node for node in nodes if node.alive and node.step and node.score is None]
        asks = [ScoreRequest(problem=self.problem.text, steps=node.steps) for node in fresh]
        self._release_now()
        replies = await all_of(replied(self.prm.score_step(ask)) for ask in asks)
        for node, reply in zip(fresh, replies, strict=True):
            assert node.parent is not None
            if not node.parent.alive:
                node.prune("a step before it was given up")
            elif isinstance(reply, InputError):
                node.prune(f"the PRM cannot read it: {reply.message}")
            else:
                self._graded(node, node.parent, reply)
        for node in nodes:
            if node.alive and not node.step and node.parent is not None:
                # An end without a step is as good as what stands before it.
                above = node.parent
                node.scores, node.aggregate, node.rank = above.scores, above.aggregate, above.rank
                if not above.alive:
                    node.prune("a step before it was given up")

    def _check(self, node: Node) -> None:
        """Give up a step that a check refutes."""
        if not self._checks or not node.step or not node.alive or node.score is not None:
            return
        assert node.parent is not None
        if not node.parent.alive:
            node.prune("a step before it was given up")
            return
        # `answer` compares the last step with the ones before it, which says nothing of a step that another follows.
        names = self._checks if node.ended else tuple(name for name in self._checks if name != "answer")
        place = len(node.steps) - 1
        for finding in check(self.problem.text, node.steps, names=names):
            if finding.step == place:
                node.refuted = True
                node.prune(f"refuted by the check {finding.check}: {finding}")

    def stop(self, why: Stopped, note: str = "") -> None:
        """Set why the search ends; the first reason stays."""
        if self.stopped == "done":
            self.stopped, self.note = why, note

    def release_but(self, nodes: Iterable[Node]) -> None:
        """Only these prefixes will be continued: what the PRM keeps of others may go."""
        needed = {node.steps for node in nodes}
        self._release += sorted(self._held - needed)
        self._held &= needed

    @property
    def spent(self) -> bool:
        """The budget allows nothing more."""
        return self.stopped == "budget"

    @property
    def finished(self) -> list[Node]:
        """Nodes at which a solution ends that was not given up, in the order in which they were written."""
        return [node for node in self.nodes.all if node.ended and node.alive]

    @property
    def refuted(self) -> list[Node]:
        """Nodes at which a solution ends that checks alone gave up, in the order in which they were written."""
        ends = [node for node in self.nodes.all if node.ended and not node.alive]
        return [node for node in ends if any(step.refuted for step in node.path)]

    def unfinished(self) -> Node | None:
        """The best of the longest way: the best node that is neither at its end nor given up; None where there is none."""
        parents = {node.parent for node in self.nodes.all if node.alive}
        open_ = [node for node in self.nodes.all if node.running and node.step and node not in parents]
        return min(open_, key=lambda node: (-value_of(node.aggregate), node.number), default=None)

    def candidate(self, node: Node) -> Candidate:
        """A node as a solution."""
        result = find_answer(node.text)
        scores = node.scores + (None,) * (len(node.steps) - len(node.scores))
        return Candidate(
            node=node.number,
            steps=node.steps,
            text=node.text,
            scores=scores,
            aggregate=node.aggregate,
            finished=node.ended,
            refuted=any(step.refuted for step in node.path),
            answer=None if result is None else result.text,
        )

    def found(self, candidates: Sequence[Candidate], chosen: int | None) -> SearchResult:
        """The result, with everything let go of; `chosen` is an index into the candidates."""
        if chosen is None or not candidates[chosen].finished:
            whys = [node.why for node in self.nodes.all if node.why and not node.why.startswith(_FOLLOWS)]
            self.stop("dead end", f"of the last step that was given up: {whys[-1]}" if whys else "")
        for node in self.finished:
            node.state = "finished"
        if chosen is not None:
            for node in self.nodes.all[candidates[chosen].node].path:
                node.state, node.why = "chosen", ""
        self.release_but([])
        self._release_now()
        cost = self.spending.cost
        nodes = tuple(node.record() for node in self.nodes.all)
        assert cost.decoded is None or cost.decoded == sum(node.policy_tokens or 0 for node in nodes)
        assert cost.prm is None or cost.prm == sum(node.prm_tokens or 0 for node in nodes)
        return SearchResult(
            problem=self.problem,
            method=self.method,
            chosen=chosen,
            candidates=tuple(candidates),
            trace=SearchTrace(
                method=self.method, aggregate=self.grading.aggregate, kind=self.grading.kind, nodes=nodes
            ),
            cost=cost,
            stopped=self.stopped,
            note=self.note,
        )

    def _write(self, node: Node, count: int, heat: float, most: int, stop: tuple[str, ...]) -> Completions:
        first = 0
        if heat:
            # By number, so that what is drawn depends on this search alone, and searches with the same settings share samples.
            first = self._asked.get(node.text, 0)
            self._asked[node.text] = first + count
        return Completions(
            prompt=self.prompt,
            prefill=node.text,
            n=count,
            temperature=heat,
            top_p=self.how.top_p,
            max_tokens=most,
            stop=stop,
            seed=self.how.seed,
            first=first,
        )

    async def _written(
        self, writes: Sequence[Completions], nodes: Sequence[Node], kind: str
    ) -> list[Sequence[Completion]]:
        """The texts of each request; none where the policy cannot go on, whose node is then given up."""
        texts: list[Sequence[Completion]] = []
        replies = await all_of(replied(self.policy.complete(write)) for write in writes)
        for write, node, reply in zip(writes, nodes, replies, strict=True):
            if isinstance(reply, InputError):
                if node.parent is None:
                    raise reply
                node.prune(f"the policy cannot go on from here: {reply.message}")
                texts.append(())
                continue
            self._longest[kind] = max([self._longest.get(kind, 0), *(item.tokens or 0 for item in reply)])
            if not write.temperature and write in self._greedy:
                # The likeliest text after the same text is the same one, and was paid for.
                texts.append([replace(item, tokens=0) for item in reply])
                continue
            self._greedy.add(write)
            self.spending.wrote(reply)
            texts.append(reply)
        return texts

    def _release_now(self) -> None:
        """Let the PRM forget what will not be continued."""
        if self._release:
            self.prm.release(self.problem.text, self._release)
            self._release = []

    def _budget_cut(self, written: Completion, lowered: bool) -> None:
        if lowered and written.finish == "length":
            self.stop("budget")

    def _graded(self, node: Node, parent: Node, reply: StepScore) -> None:
        try:
            score = check_score(reply.score, self.grading.kind, step=len(node.steps) - 1)
        except InputError as error:
            raise BackendError(f"the PRM, of {self.problem.text[:60]!r}: {error}") from None
        self._held.add(node.steps)
        tokens, root = reply.tokens, reply.root or 0
        # A PRM that reads whole prefixes (root 0) begins anew each time.
        before = 0 if not root else parent.read if parent.step else root
        node.read = before + (tokens or 0)
        if node.steps not in self._charged:
            if tokens is not None and not self._charged:
                tokens, before = (
                    tokens + root,
                    before - root,
                )  # the problem itself, at the first prefix that is read
            self._charged.add(node.steps)
            node.prm_tokens = added(node.prm_tokens, tokens)
            self.spending.read(tokens, before)
        node.scores = (*parent.scores, score)
        try:
            node.aggregate = aggregate(node.scores, self.grading.aggregate, kind=self.grading.kind)
        except InputError as error:
            node.prune(f"its steps have no {self.grading.aggregate}: {error.message}")
        node.rank = node.aggregate
